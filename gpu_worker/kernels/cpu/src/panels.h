// Weight panels, the layout of a weight matrix [out, in], and the product of a tile of rows with a panel.
//
// Numbers along `in` form words of 32 bits (one float32, two bfloat16, four int8). 32 outputs form a panel, which is
// read once from its beginning to its end:
//
//     panel 0                                            panel 1
//     word 0: output 0, 1, .. 31 │ word 1: output 0 ..   word 0: output 32, 33 ..
//
// Missing numbers of the last word and the last panel are zero. The first 16 columns of a gated panel are gates, the
// other 16 columns are their ups.
#pragma once

#include <array>
#include <utility>

#include "rows.h"
#include "simd.h"
#include "team.h"

namespace quire {

constexpr int COLUMNS = 2 * LANES;

// Rows of a tile: their sums fit in registers.
#if defined(__AVX512F__)
constexpr int TILE_ROWS = 12;
#else
constexpr int TILE_ROWS = 2;
#endif

// Rows that a task multiplies with a panel.
constexpr int TASK_ROWS = 8 * TILE_ROWS;

// Distance of prefetching, in words, for tiles of at least COMPUTING rows. Tiles of fewer rows wait for memory anyway,
// and the processor's own prefetching is faster for them.
constexpr int AHEAD = 32 * COLUMNS;
constexpr int COMPUTING = 3;

// The product of words of one float32: `dot` adds weights times x to the sums of 16 columns.
struct Float32 {
    using Sum = f32x16;
    static Sum dot(Sum sum, u32x16 weights, uint32_t x) {
        float number;
        std::memcpy(&number, &x, sizeof(number));
        return sum + (f32x16)weights * number;
    }
};

// The product of words of two bfloat16, with sums in float32.
struct BFloat16 {
    using Sum = f32x16;
    static Sum dot(Sum sum, u32x16 weights, uint32_t x) {
        const u32x16 pair = u32x16{} + x;
#if defined(__AVX512BF16__)
        return (Sum)_mm512_dpbf16_ps((__m512)sum, (__m512bh)weights, (__m512bh)pair);
#else
        sum += (f32x16)(weights << 16) * (f32x16)(pair << 16);
        return sum + (f32x16)(weights & 0xFFFF0000) * (f32x16)(pair & 0xFFFF0000);
#endif
    }
};

// The sums of one panel's columns for each of a tile's rows.
template <class Sum>
struct Tile {
    Sum sums[TILE_ROWS][2];
};

// Multiplication of panels word by word, with `Dot`.
template <class Dot>
struct Words {
    using Sum = typename Dot::Sum;
    static constexpr int ROWS = TILE_ROWS;
    static constexpr int64_t SIZE = COLUMNS;

    // x: the first of COUNT rows, `stride` words apart. Words are added up one by one, from the first to the last,
    // for any COUNT, so that the result of a row does not depend on the other rows. FETCHES: prefetch `later` into
    // the L2 cache, a cache line for each word.
    template <bool FETCHES, int COUNT>
    static void multiply(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t words,
                         const uint32_t* later, Tile<Sum>& tile) {
        Sum sums[COUNT][2] = {};
        for (int64_t word = 0; word < words; ++word, panel += COLUMNS) {
            if (COUNT >= COMPUTING) {
                __builtin_prefetch(panel + AHEAD);
                __builtin_prefetch(panel + AHEAD + LANES);
                if (FETCHES) __builtin_prefetch(later + word * LANES, 0, 2);
            }
            const auto left = load_bits<u32x16>(panel);
            const auto right = load_bits<u32x16>(panel + LANES);
#pragma GCC unroll 16
            for (int row = 0; row < COUNT; ++row) {
                const uint32_t number = x[row * stride + word];
                sums[row][0] = Dot::dot(sums[row][0], left, number);
                sums[row][1] = Dot::dot(sums[row][1], right, number);
            }
        }
#pragma GCC unroll 16
        for (int row = 0; row < COUNT; ++row) {
            tile.sums[row][0] = sums[row][0];
            tile.sums[row][1] = sums[row][1];
        }
    }
};

template <class Kind>
using Multiply = void (*)(const uint32_t*, int64_t, const uint32_t*, int64_t, const uint32_t*,
                          Tile<typename Kind::Sum>&);

template <class Kind, bool FETCHES, int... BEFORE>
constexpr std::array<Multiply<Kind>, Kind::ROWS> multiplies(std::integer_sequence<int, BEFORE...>) {
    return {Kind::template multiply<FETCHES, BEFORE + 1>...};
}

// A kind's `multiply` functions for 1, 2, .. ROWS rows.
template <class Kind, bool FETCHES>
constexpr auto MULTIPLY = multiplies<Kind, FETCHES>(std::make_integer_sequence<int, Kind::ROWS>());

// Multiply all rows with all panels, of `pieces` times SIZE words each. Calls `finish(panel, row, rows, tile)` with
// each tile's sums. A task is one panel and at most TASK_ROWS rows: the panel is read from memory once and then from the L2
// cache. Two of its tiles prefetch half of the next panel each, because memory and arithmetic would otherwise wait for
// each other. With more than two tiles the first one prefetches nothing, because it may wait for its own panel.
template <class Kind, class Finish>
void for_each_tile(const Rows& x, const uint32_t* panels, int64_t count, int64_t pieces, const Finish& finish) {
    constexpr int64_t TASK_TILES = TASK_ROWS / Kind::ROWS;
    const int64_t size = pieces * Kind::SIZE;
    const int64_t tiles = (x.count + Kind::ROWS - 1) / Kind::ROWS;
    const int64_t parts = (tiles + TASK_TILES - 1) / TASK_TILES;
    const int64_t fetching = tiles > 2;
    parallel_for(parts * count, [&](int64_t task, int) {
        const int64_t panel = task / parts, part = task % parts;
        const uint32_t* weights = panels + panel * size;
        for (int64_t number = part * tiles / parts; number < (part + 1) * tiles / parts; ++number) {
            const int64_t row = number * x.count / tiles;
            const int rows = int((number + 1) * x.count / tiles - row);
            const int64_t half = number - fetching;
            const bool fetches = parts == 1 && tiles > 1 && panel + 1 < count && (half == 0 || half == 1);
            const auto& multiplies = fetches ? MULTIPLY<Kind, true> : MULTIPLY<Kind, false>;
            const uint32_t* later = weights + size + half * size / 2;
            Tile<typename Kind::Sum> tile;
            multiplies[rows - 1](x.words + row * x.stride, x.stride, weights, pieces, later, tile);
            finish(panel, row, rows, tile);
        }
    });
}

}  // namespace quire
