// Tiles of shared pages, as latent attention has them: a row is a position's key, and its first `value_dim`
// numbers are the value.
//
//     page   [block] [block_size][head_dim]
//
// One row serves both products, so that neither has it in the layout that it would like (see pages.h), and
// nothing is stored twice. Rows are whole registers: `head_dim` is a multiple of 32. A score is a sum along a row: those of 16 positions grow side by side in as many
// registers, which are folded into one vector at the end. Values of bfloat16 are weighed in pairs of positions:
// words of two rows become words of their even dimensions and words of their odd ones, and so their sums lie:
//
//     state   │ dimension 0 2 4 .. 30 │ 1 3 5 .. 31 │ 32 34 ..
#pragma once

#include "swap.h"
#include "tiles.h"

namespace quire {
namespace {

// Numbers in a register of words.
template <class T>
constexpr int64_t WORDS = LANES * PACK<T>;

// sum + the products of what lies side by side in each lane of both.
inline f32x16 product(f32x16 sum, u32x16 one, u32x16 other, float) { return sum + (f32x16)one * (f32x16)other; }
inline f32x16 product(f32x16 sum, u32x16 one, u32x16 other, bf16) {
#if defined(__AVX512BF16__)
    return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)one, (__m512bh)other);
#else
    return sum + seconds(one) * seconds(other) + firsts(one) * firsts(other);
#endif
}

// 16 words of what lies side by side at `one`.
template <class T>
inline u32x16 words_of(const T* one) {
    return u32x16{} + load_bits<uint32_t>(one);
}

// Sums of two lanes whose numbers differ in the bit DISTANCE: of `one` where the bit is not set, of `other` where it is.
template <int DISTANCE>
inline f32x16 fold(f32x16 one, f32x16 other) {
    const i32x16 set = (steps() & DISTANCE) != 0;
    return select(set, other, one) + swapped<DISTANCE>(select(set, one, other));
}

// The sums of the lanes of each of 16 vectors, which it folds up. (Not inlined: where a machine has no such
// registers, each shuffle is many instructions.)
__attribute__((noinline)) f32x16 sums_of(f32x16* vectors) {
    for (int i = 0; i < 8; ++i) vectors[i] = fold<1>(vectors[2 * i], vectors[2 * i + 1]);
    for (int i = 0; i < 4; ++i) vectors[i] = fold<2>(vectors[2 * i], vectors[2 * i + 1]);
    for (int i = 0; i < 2; ++i) vectors[i] = fold<4>(vectors[2 * i], vectors[2 * i + 1]);
    return fold<8>(vectors[0], vectors[1]);
}

// `count` numbers of int8, a multiple of 16.
inline void widen(const int8_t* from, int64_t count, float* to) {
    for (int64_t at = 0; at < count; at += LANES) store(to + at, load(from + at));
}
// A bfloat16 holds every whole number up to 256.
inline void widen(const int8_t* from, int64_t count, bf16* to) {
    for (int64_t at = 0; at < count; at += LANES) store_bits(to + at, narrow_exact(load(from + at)));
}

// The rows of a tile, which may be copies.
template <class T>
struct SharedRows {
    static constexpr int64_t STEP = WORDS<T>;
    static constexpr bool INLINES = false;

    const T* rows[POSITIONS];  // of positions that nobody looks at: any row
    int64_t begin = 0, end = 0;
    const bool scaled;
    alignas(64) float key_scales[POSITIONS];
    const float* scales_of_values() const { return key_scales; }
};

// As `Tile`.
template <class T, class P>
struct SharedTile : SharedRows<T> {
    using Number = T;
    using Page = P;
    using Factor = T;
    using Seen = SharedRows<T>;
    using Fetch = NoFetch;  // rows lie one behind the other: the processor sees what comes next
    static constexpr bool COPIED = !std::is_same_v<T, Page>;
    using Seen::rows, Seen::begin, Seen::end, Seen::key_scales, Seen::STEP;
    std::vector<T> copies;

    SharedTile() : Seen{.scaled = COPIED} {}

    // Look up positions `first` to `last` - 1 of the tile that starts at `base`.
    void find(const Shape& shape, const Kept<Page>& kept, const int32_t* table, int64_t, int64_t base, int64_t first,
              int64_t last) {
        begin = first - base;
        end = last - base;
        const int64_t dim = shape.head_dim;
        if (COPIED) copies.resize(POSITIONS * dim);
        for (int64_t place = begin; place < end; ++place) {
            const int64_t position = base + place;
            const int64_t row = int64_t(table[position / shape.block_size]) * shape.block_size + position % shape.block_size;
            if constexpr (!COPIED) {
                rows[place] = kept.keys + row * dim;
            } else {
                rows[place] = copies.data() + place * dim;
                widen(kept.keys + row * dim, dim, copies.data() + place * dim);
                key_scales[place] = kept.key_scales[row];
            }
        }
        std::fill(rows, rows + begin, rows[begin]);
        std::fill(rows + end, rows + POSITIONS, rows[begin]);
    }

    bool worth_fetching() const { return false; }

    static void write(State state, float total, int64_t dim, T* to) {
        for (int64_t d = 0; d < dim; d += STEP) {
            alignas(64) T mean[STEP];
            if constexpr (PACK<T> == 1) {
                store(mean, load(state.values() + d) / total);
            } else {
                const u16x16 evens = narrow(load(state.values() + d) / total);
                const u16x16 odds = narrow(load(state.values() + d + LANES) / total);
                const u32x16 words = convert<uint32_t>(evens) | convert<uint32_t>(odds) << 16;
                store_bits(mean, words);
            }
            std::copy_n(mean, std::min(STEP, dim - d), to + d);
        }
    }
};

// Products of ROWS queries with 16 rows, four at a time, each in a register of its own.
template <int ROWS, class T>
__attribute__((noinline)) void dot_rows(const T* const* queries, const T* const* rows, int64_t dim, int64_t vector,
                                        f32x16 (*scores)[VECTORS]) {
    f32x16 parts[ROWS][LANES];
#pragma GCC unroll 1
    for (int first = 0; first < LANES; first += 4) {
        f32x16 sums[ROWS][4] = {};
        for (int64_t d = 0; d < dim; d += WORDS<T>) {
            u32x16 keys[4];
            for (int key = 0; key < 4; ++key) keys[key] = load_bits<u32x16>(rows[first + key] + d);
#pragma GCC unroll 8
            for (int row = 0; row < ROWS; ++row) {
                const auto query = load_bits<u32x16>(queries[row] + d);
#pragma GCC unroll 4
                for (int key = 0; key < 4; ++key) sums[row][key] = product(sums[row][key], keys[key], query, T{});
            }
        }
        for (int row = 0; row < ROWS; ++row)
            for (int key = 0; key < 4; ++key) parts[row][first + key] = sums[row][key];
    }
    for (int row = 0; row < ROWS; ++row) scores[row][vector] = sums_of(parts[row]);
}

// See the other one.
template <int ROWS, int WIDE, class T, class F>
inline void dot(const T* const* queries, const SharedRows<T>& tile, int64_t first, int64_t dim, f32x16 (*scores)[VECTORS],
                F&) {
    for (int64_t vector = first; vector < first + WIDE; ++vector)
        dot_rows<ROWS>(queries, tile.rows + vector * LANES, dim, vector, scores);
}

// Add the values of places `begin` to `end` - 1 times the weights of ROWS rows to their states: WIDE vectors of
// dimensions, from `d` on. A pair's place that no row sees may hold anything, even what is not a number.
template <int ROWS, int WIDE, class T>
__attribute__((noinline)) void weigh_rows(const T (*weights)[POSITIONS], const SharedRows<T>& tile, int64_t begin,
                                          int64_t end, State* states, int64_t d) {
    f32x16 held[ROWS][WIDE];
    for (int row = 0; row < ROWS; ++row)
        for (int v = 0; v < WIDE; ++v) held[row][v] = load(states[row].values() + d + v * LANES);
    for (int64_t place = begin / PACK<T> * PACK<T>; place < end; place += PACK<T>) {
        const T* from = tile.rows[place] + d;
        u32x16 values[WIDE];
        if constexpr (PACK<T> == 1) {
            for (int v = 0; v < WIDE; ++v) values[v] = load_bits<u32x16>(from + v * LANES);
        } else {
            const T* next_from = tile.rows[place + 1] + d;
            const uint32_t low = place < begin ? 0 : 0xFFFFu, high = place + 1 < end ? 0xFFFF0000u : 0;
            for (int v = 0; v < WIDE; v += 2) {
                const auto one = load_bits<u32x16>(from + v * LANES), next = load_bits<u32x16>(next_from + v * LANES);
                values[v] = (one & low) | ((next << 16) & high);
                values[v + 1] = ((one >> 16) & low) | (next & high);
            }
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; ++v) held[row][v] = product(held[row][v], values[v], words_of(weights[row] + place), T{});
    }
    for (int row = 0; row < ROWS; ++row)
        for (int v = 0; v < WIDE; ++v) store(states[row].values() + d + v * LANES, held[row][v]);
}

// See the other one.
template <int ROWS, int WIDE, class T, class F>
inline void weigh(const T (*weights)[POSITIONS], const float*, const SharedRows<T>& tile, int64_t begin, int64_t end, State* states,
                  int64_t d, F&) {
    // (States of pairs are a multiple of two vectors: one never comes.)
    if constexpr (WIDE % PACK<T> == 0) weigh_rows<ROWS, WIDE>(weights, tile, begin, end, states, d);
}

}  // namespace
}  // namespace quire
