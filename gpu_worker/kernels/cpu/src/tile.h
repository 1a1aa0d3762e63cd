// Tiles of a sequence's keys and values, taken out of the pages and laid out for small products.
//
// A product's inner dimension goes in units of four bytes: one float32, or two bfloat16, which is what a
// processor that multiplies bfloat16 takes at once. Keys are turned so that a vector holds one unit of 16
// positions; values so that it holds 16 dimensions of one unit of positions:
//
//     keys [units of head_dim][64 positions]          values [units of 64 positions][head_dim]
//
// Both products are then the same loop, and every sum is made in the same order, however many rows are
// computed together.
#pragma once

#include <algorithm>
#include <vector>

#include "simd.h"

namespace quire {

constexpr int POSITIONS = 64;  // of a tile

struct Shape {
    int64_t block_size, heads, kv_heads, head_dim;
    int64_t group() const { return heads / kv_heads; }
    int64_t padded() const { return (head_dim + LANES - 1) / LANES * LANES; }
};

template <class T>
constexpr int64_t PER_UNIT = 4 / sizeof(T);

// Add to 16 sums the products of one unit with 16.
template <class T>
inline f32x16 multiply_add(f32x16 sums, u32x16 units, uint32_t unit);

template <>
inline f32x16 multiply_add<float>(f32x16 sums, u32x16 units, uint32_t unit) {
    float number;
    std::memcpy(&number, &unit, sizeof(number));
    return sums + (f32x16)units * number;
}

template <>
inline f32x16 multiply_add<bf16>(f32x16 sums, u32x16 units, uint32_t unit) {
#if defined(__AVX512BF16__)
    return (f32x16)_mm512_dpbf16_ps((__m512)sums, (__m512bh)units, (__m512bh)_mm512_set1_epi32(int(unit)));
#else
    const u32x16 both = u32x16{} + unit;
    sums = sums + (f32x16)(units << 16) * (f32x16)(both << 16);
    return sums + (f32x16)(units & 0xFFFF0000u) * (f32x16)(both & 0xFFFF0000u);
#endif
}

// Add rows of units times units [.][stride], `first` to `last` - 1 of the inner dimension, to WIDTH vectors.
template <class T, int ROWS, int WIDTH>
inline void multiply_add(f32x16 (&sums)[ROWS][WIDTH], const uint32_t* const* rows, const uint32_t* units,
                         int64_t stride, int64_t first, int64_t last) {
    for (int64_t k = first; k < last; ++k) {
        u32x16 vectors[WIDTH];
        for (int v = 0; v < WIDTH; ++v) vectors[v] = load_bits<u32x16>(units + k * stride + v * LANES);
        for (int row = 0; row < ROWS; ++row)
            for (int v = 0; v < WIDTH; ++v) sums[row][v] = multiply_add<T>(sums[row][v], vectors[v], rows[row][k]);
    }
}

#if defined(__AVX512F__)
// Swap what lies off the diagonal of every square of 2 * S rows and lanes.
template <int S>
inline void swap_squares(u32x16 (&rows)[LANES]) {
    u32x16 upper, lower;
    for (int lane = 0; lane < LANES; ++lane) {
        upper[lane] = lane & S ? LANES + lane - S : lane;
        lower[lane] = lane & S ? LANES + lane : lane + S;
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) {
        if (i & S) continue;
        const __m512i a = (__m512i)rows[i], b = (__m512i)rows[i + S];
        rows[i] = (u32x16)_mm512_permutex2var_epi32(a, (__m512i)upper, b);
        rows[i + S] = (u32x16)_mm512_permutex2var_epi32(a, (__m512i)lower, b);
    }
}
#endif

// 16 units of each of 16 rows: written with rows and columns exchanged.
template <class T>
inline void transpose(const T* const* rows, int64_t d, uint32_t* to, int64_t stride) {
#if defined(__AVX512F__)
    u32x16 square[LANES];
    for (int i = 0; i < LANES; ++i) square[i] = load_bits<u32x16>(rows[i] + d);
    swap_squares<1>(square);
    swap_squares<2>(square);
    swap_squares<4>(square);
    swap_squares<8>(square);
    for (int i = 0; i < LANES; ++i) std::memcpy(to + i * stride, &square[i], sizeof(square[i]));
#else
    for (int i = 0; i < LANES; ++i)
        for (int k = 0; k < LANES; ++k) std::memcpy(to + k * stride + i, rows[i] + d + k * PER_UNIT<T>, 4);
#endif
}

// Units of one number from each row of a pair, for 16 dimensions.
inline u32x16 pair(const bf16* row, const bf16* next) {
    return __builtin_convertvector(load_bits<u16x16>(row), u32x16) |
           __builtin_convertvector(load_bits<u16x16>(next), u32x16) << 16;
}

template <class T>
struct Tile {
    const T* key_rows[POSITIONS];
    const T* value_rows[POSITIONS];
    int64_t begin = 0, end = 0;  // places of the positions that are looked at
    std::vector<T> zeros;  // the row of every other

    // Look up positions `first` to `last` - 1 of the tile that starts at `base`.
    void find(const Shape& shape, const T* key_pages, const T* value_pages, const int32_t* table, int64_t head,
              int64_t base, int64_t first, int64_t last) {
        zeros.resize(shape.head_dim);
        begin = first - base;
        end = last - base;
        for (int64_t place = 0; place < POSITIONS; ++place) key_rows[place] = value_rows[place] = zeros.data();
        int64_t block = first / shape.block_size, offset = first % shape.block_size;
        for (int64_t place = begin; place < end; ++place) {
            const int64_t entry = (table[block] * shape.kv_heads + head) * shape.block_size + offset;
            key_rows[place] = key_pages + entry * shape.head_dim;
            value_rows[place] = value_pages + entry * shape.head_dim;
            if (++offset == shape.block_size) {
                offset = 0;
                ++block;
            }
        }
    }

    // Ask for 16 positions' memory.
    void fetch(int64_t place, int64_t head_dim) const {
        for (int64_t last = std::min<int64_t>(end, place + LANES); place < last; ++place)
            for (int64_t d = 0; d < head_dim; d += 64 / int64_t(sizeof(T))) {
                __builtin_prefetch(key_rows[place] + d);
                __builtin_prefetch(value_rows[place] + d);
            }
    }
};

// A tile's keys and values in units. Places that are not looked at hold anything in `keys`, and are not to be
// multiplied with in `values` beyond the unit of the first and last that is.
template <class T>
struct Units {
    std::vector<uint32_t> keys, values;

    // Takes `tile`, and meanwhile asks for the memory of `next`: all at once, it would be waited for.
    void take(const Tile<T>& tile, const Tile<T>* next, const Shape& shape) {
        keys.resize((shape.head_dim / PER_UNIT<T>)*POSITIONS);
        values.resize(POSITIONS / PER_UNIT<T> * shape.padded());
        for (int64_t place = 0; place < POSITIONS; place += LANES) {
            if (next) next->fetch(place, shape.head_dim);
            if (place + LANES <= tile.begin || place >= tile.end) continue;
            take_keys(tile.key_rows + place, shape.head_dim, keys.data() + place);
            for (int64_t unit = 0; unit < LANES / PER_UNIT<T>; ++unit)
                take_values(tile.value_rows + place + unit * PER_UNIT<T>, shape.head_dim,
                            values.data() + (place / PER_UNIT<T> + unit) * shape.padded());
        }
    }

    static void take_keys(const T* const* rows, int64_t head_dim, uint32_t* to) {
        int64_t d = 0;
        for (; d + LANES * PER_UNIT<T> <= head_dim; d += LANES * PER_UNIT<T>)
            transpose(rows, d, to + d / PER_UNIT<T> * POSITIONS, POSITIONS);
        for (; d < head_dim; d += PER_UNIT<T>)
            for (int i = 0; i < LANES; ++i) std::memcpy(to + d / PER_UNIT<T> * POSITIONS + i, rows[i] + d, 4);
    }

    static void take_values(const float* const* rows, int64_t head_dim, uint32_t* to) {
        std::memcpy(to, rows[0], head_dim * sizeof(float));
    }

    static void take_values(const bf16* const* rows, int64_t head_dim, uint32_t* to) {
        int64_t d = 0;
        for (; d + LANES <= head_dim; d += LANES) {
            const u32x16 units = pair(rows[0] + d, rows[1] + d);
            std::memcpy(to + d, &units, sizeof(units));
        }
        for (; d < head_dim; ++d) to[d] = rows[0][d].bits | uint32_t(rows[1][d].bits) << 16;
    }
};

}  // namespace quire
