// Tiles: 64 positions of a sequence's pages as one key head sees them, and the two products with them.
#pragma once

#include <algorithm>
#include <type_traits>
#include <vector>

#include "dot.h"
#include "pages.h"
#include "quantize.h"

namespace quire {
namespace {

constexpr float LOWEST = -1e30f;  // below any score, and a number: what is left of it fades to nothing
constexpr int POSITIONS = 64;  // of a tile
constexpr int VECTORS = POSITIONS / LANES;
constexpr int64_t LINE = 64;  // bytes of a cache line

struct Shape : Pages {
    int64_t heads;
    int64_t value_dim;  // head_dim, but in shared pages
    int64_t held;  // value_dim, padded to what a tile adds up at once
    int64_t group() const { return heads / kv_heads; }
    int64_t padded() const { return (head_dim + LANES - 1) / LANES * LANES; }
};

// The softmax of one row as far as it has got: greatest score, sums of exponentials, which 16 lanes keep
// apart, and the values weighted by them, [value_dim], padded, in the order that tiles add them up in. Scores are in units of ln 2.
struct State {
    float* at;
    float& most() { return at[0]; }
    float* totals() { return at + LANES; }
    float* values() { return at + 2 * LANES; }
    static int64_t size(const Shape& shape) { return 2 * LANES + shape.held; }
    void clear(const Shape& shape) {
        std::fill(at, at + size(shape), 0.0f);
        most() = LOWEST;
    }
    void fade(float factor, const Shape& shape) {
        for (float* part = totals(); part < at + size(shape); part += LANES) store(part, load(part) * factor);
    }
};

// Vectors of pairs of bfloat16, as two of float32: the first of each pair, and the second.
inline f32x16 firsts(u32x16 pairs) { return (f32x16)(pairs << 16); }
inline f32x16 seconds(u32x16 pairs) { return (f32x16)(pairs & 0xFFFF0000u); }

// What numbers of type T in pages are multiplied by, queries and weights. Without an instruction for pairs of bfloat16 these
// are float32: taking a pair of them apart costs as much as multiplying by it. Of int8 they are whole numbers, so that sums
// are exact.
#if defined(__AVX512BF16__)
template <class T>
using Factor = std::conditional_t<std::is_same_v<T, int8_t>, int16_t, T>;
#else
template <class T>
using Factor = std::conditional_t<std::is_same_v<T, int8_t>, int16_t, float>;
#endif
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, int8_t>, i32x16, f32x16>;

// The greatest of a row's whole numbers: with 127, and 1024 dimensions, a sum of products fits into 32 bits.
constexpr int WHOLE_BITS = 7;
constexpr float WHOLE = (1 << 2 * WHOLE_BITS) - 1;

// Writes 16 whole numbers at `at` of a row: the first and the third of four side by side, then the others, as the bytes of
// words are multiplied (`two_of_four`).
inline void put_whole(i32x16 numbers, int16_t* row, int64_t, int64_t at) {
    struct Quads {
        static constexpr int of(int lane) { return lane - lane % 4 + (lane % 4 == 1 ? 2 : lane % 4 == 2 ? 1 : lane % 4); }
    };
    const auto ordered = by_part([](auto part) { return (Register<uint32_t>)reordered((Register<float>)part, Quads(), Lanes()); },
                                 (u32x16)numbers & 0xFFFF);
    store_bits(row + at, lower_halves(ordered));
}

// The same as bytes: the upper bits, and `size` numbers later the lower ones.
inline void put_whole(i32x16 numbers, int8_t* row, int64_t size, int64_t at) {
    store_bits(row + at, low_bytes((u32x16)(numbers >> WHOLE_BITS)));
    store_bits(row + size + at, low_bytes((u32x16)(numbers & ((1 << WHOLE_BITS) - 1))));
}

// Factors that a number takes.
template <class Factor>
constexpr int64_t FACTORS = std::is_same_v<Factor, int8_t> ? 2 : 1;

// A query of `dim` numbers as factors; there is room for `size` numbers. Whole numbers are multiples of `unit`.
template <class T, class Factor>
void put_query(const T* from, int64_t dim, Factor* to, int64_t size, float* unit) {
    if constexpr (std::is_integral_v<Factor>) {
        u32x16 sizes = {};
        for (int64_t at = 0; at < dim; at += LANES) sizes = larger(sizes, load_part(from + at, dim - at));
        const Scale scale(sizes, WHOLE);
        *unit = scale.scale;
        for (int64_t at = 0; at < dim; at += LANES) put_whole(whole(load_part(from + at, dim - at) * scale.inverse), to, size, at);
    } else if constexpr (std::is_same_v<Factor, T>) {
        std::copy_n(from, dim, to);
    } else {
        to_floats(from, dim, to);
    }
}

// Words of 16 lanes are multiplied in PARTS parts: some of the numbers in a word at a time, as many as factors have 4 bytes.
template <class T>
constexpr int PARTS = PACK<T> * sizeof(Factor<T>) / 4;

// The same address, from which `times` reads went before. Where words are multiplied in parts, the compiler takes it for
// another one, and reads again what lies there: registers are full of sums, and what it would keep there displaces them.
template <class T, class Number>
inline const Number* afresh(const Number* address, int times) {
    if (PARTS<T> > 1 && times) asm volatile("" : "+r"(address));
    return address;
}

// sum + the products of a part of the numbers in each lane of `packed` with the factors of that part, which begin at `one`.
template <class T>
inline Sum<T> product(Sum<T> sum, u32x16 packed, const Factor<T>* one, int part) {
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>) {
        const __m512bh pair = (__m512bh)_mm512_set1_epi32(load_bits<int32_t>(one));
        return (f32x16)_mm512_dpbf16_ps((__m512)sum, (__m512bh)packed, pair);
    }
#else
    if constexpr (std::is_same_v<T, bf16>) return settled(sum + (part ? seconds(packed) : firsts(packed)) * one[part]);
#endif
    if constexpr (std::is_same_v<T, int8_t>)
        return dot_halves(sum, two_of_four(packed, part), u32x16{} + load_bits<uint32_t>(one + 2 * part));
    if constexpr (std::is_same_v<T, float>) return sum + (f32x16)packed * *one;
}

// The pages of a layer; of int8 with a scale for each position and head, otherwise null.
template <class Page>
struct Kept {
    const Page *keys, *values;
    const float *key_scales, *value_scales;
};

// One tile of a sequence's pages, as one key head sees it.
template <class P>
struct SeenTile {
    using Page = P;
    static constexpr int64_t STEP = LANES;  // dimensions of values that are added up at once
    static constexpr bool INLINES = true;  // products are so short that a call beside them costs
    static constexpr bool scaled = std::is_same_v<Page, int8_t>;

    const Page* keys[VECTORS];  // of 16 positions each, at dimension 0
    const Page* values[VECTORS];  // of 16 positions each, at the first
    int64_t key_stride = 0, value_stride = 0;  // to the next PACK dimensions, to the next PACK positions
    int64_t begin = 0, end = 0;  // places of the positions that are looked at
    alignas(64) float key_scales[POSITIONS], value_scales[POSITIONS];

    const float* scales_of_values() const { return value_scales; }
};

template <class Page>
struct Fetch;

// The same, with how it is found and what it gives. T: type of activations.
template <class T, class P = T>
struct Tile : SeenTile<P> {
    using Number = T;
    using Page = P;
    using Factor = quire::Factor<Page>;
    using Seen = SeenTile<P>;
    using Fetch = quire::Fetch<Page>;
    using Seen::keys, Seen::values, Seen::key_stride, Seen::value_stride, Seen::begin, Seen::end, Seen::key_scales, Seen::value_scales;
    std::vector<Page> copies;  // where the pages' own layout is not one of whole vectors

    // Look up positions `first` to `last` - 1 of the tile that starts at `base`.
    void find(const Shape& shape, const Kept<Page>& kept, const int32_t* table, int64_t head, int64_t base,
              int64_t first, int64_t last) {
        begin = first - base;
        end = last - base;
        if constexpr (Seen::scaled) copy_scales(shape, kept, table, head, base);
        if (shape.block_size % LANES == 0 && shape.head_dim % LANES == 0) return point(shape, kept, table, head, base);
        own_copies(shape);
        copy(shape, kept, table, head, base);
    }

    // Where the pages have them.
    void point(const Shape& shape, const Kept<Page>& kept, const int32_t* table, int64_t head, int64_t base) {
        key_stride = shape.block_size * PACK<Page>;
        value_stride = shape.head_dim * PACK<Page>;
        for (int64_t vector = begin / LANES; vector * LANES < end; ++vector) {
            const int64_t position = base + vector * LANES, offset = position % shape.block_size;
            const int64_t page = shape.page(table[position / shape.block_size], head);
            keys[vector] = kept.keys + page + offset * PACK<Page>;
            values[vector] = kept.values + page + offset * shape.head_dim;
        }
    }

    // Pages of the tile's own, one block as large as the tile: keys, then values.
    void own_copies(const Shape& shape) {
        const int64_t dim = shape.padded(), size = POSITIONS * dim;
        copies.resize(2 * size);
        key_stride = POSITIONS * PACK<Page>;
        value_stride = dim * PACK<Page>;
        for (int64_t vector = 0; vector < VECTORS; ++vector) {
            keys[vector] = copies.data() + vector * LANES * PACK<Page>;
            values[vector] = copies.data() + size + vector * LANES * dim;
        }
    }

    // Number by number.
    void copy(const Shape& shape, const Kept<Page>& kept, const int32_t* table, int64_t head, int64_t base) {
        const Pages own{POSITIONS, 1, shape.padded()};
        const int64_t size = POSITIONS * own.head_dim;
        std::fill(copies.begin(), copies.end(), Page{});
        for (int64_t place = begin; place < end; ++place) {
            const int64_t position = base + place, offset = position % shape.block_size;
            const int64_t page = shape.page(table[position / shape.block_size], head);
            for (int64_t d = 0; d < shape.head_dim; ++d) {
                copies[own.key<Page>(place, d)] = kept.keys[page + shape.key<Page>(offset, d)];
                copies[size + own.value<Page>(place, d)] = kept.values[page + shape.value<Page>(offset, d)];
            }
        }
    }

    // What is copied is read as it is found.
    bool worth_fetching() const { return copies.empty(); }

    static void write(State state, float total, int64_t dim, T* to) {
        for (int64_t d = 0; d < dim; d += LANES) {
            const f32x16 mean = load(state.values() + d) / total;
            if (dim - d >= LANES) {
                store(to + d, mean);
            } else {
                for (int64_t lane = 0; d + lane < dim; ++lane) from_float(to + d + lane, mean[lane]);
            }
        }
    }

    void copy_scales(const Shape& shape, const Kept<Page>& kept, const int32_t* table, int64_t head, int64_t base) {
        for (int64_t place = begin; place < end;) {
            const int64_t offset = (base + place) % shape.block_size;
            const int64_t row = shape.row(table[(base + place) / shape.block_size], head) + offset;
            const int64_t count = std::min(end - place, shape.block_size - offset);
            std::copy_n(kept.key_scales + row, count, key_scales + place);
            std::copy_n(kept.value_scales + row, count, value_scales + place);
            place += count;
        }
    }
};

// Fetches the next tile into the second cache, part by part while one is computed with: memory gives only so
// many lines at a time, and who asks for more waits.
template <class Page>
struct Fetch {
    const SeenTile<Page>* tile;
    int64_t parts, interval, part = 0, wait = 1;

    // `turns`: groups of rows that are computed meanwhile, each of which calls `some` about twice per part.
    Fetch(const SeenTile<Page>* tile, const Shape& shape, int64_t turns)
        : tile(tile), parts(tile ? shape.head_dim / PACK<Page> : 0), interval(2 * turns) {}

    void some() {
        if (--wait) return;
        wait = interval;
        if (part < parts) one();
    }
    void next() {
        if (part < parts) one();
    }
    void one() {
        for (int64_t vector = tile->begin / LANES; vector * LANES < tile->end; ++vector) {
            __builtin_prefetch(tile->keys[vector] + part * tile->key_stride, 0, 2);
            __builtin_prefetch(tile->values[vector] + part * LANES * PACK<Page>, 0, 2);
        }
        ++part;
    }
    void rest() {
        while (part < parts) one();
    }
};
constexpr int64_t FETCHING = 2;  // groups of rows that look after it; in the innermost loops even asking costs

struct NoFetch {
    NoFetch() = default;
    template <class K>
    NoFetch(const K*, const Shape&, int64_t) {}
    void some() {}
    void next() {}
    void rest() {}
};

// Products of ROWS queries with the keys of WIDE vectors of the tile, from `first` on. Every loop over rows and vectors is
// unrolled, here and in `weigh`: a compiler keeps sums in memory if a loop indexes them.
template <int ROWS, int WIDE, class Page, class F>
inline void dot(const Factor<Page>* const* queries, const SeenTile<Page>& tile, int64_t first, int64_t dim,
                f32x16 (*scores)[VECTORS], F& fetch) {
    Sum<Page> sums[ROWS][WIDE] = {};
    for (int64_t d = 0; d < dim; d += PACK<Page>) {
        fetch.some();
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; ++v) {
            const Page* from = tile.keys[first + v] + d / PACK<Page> * tile.key_stride;
#pragma GCC unroll 2
            for (int part = 0; part < PARTS<Page>; ++part) {
                const auto keys = load_bits<u32x16>(afresh<Page>(from, part));
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; ++row)
                    sums[row][v] = product<Page>(sums[row][v], keys, afresh<Page>(queries[row], v) + d, part);
            }
        }
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; ++v) scores[row][first + v] = convert<float>(sums[row][v]);
}

// Add the values of places `begin` to `end` - 1 times the weights of ROWS rows to their states: WIDE
// vectors of dimensions, from `d` on.
template <int ROWS, int WIDE, class Page, class F>
inline void weigh(const Factor<Page> (*weights)[POSITIONS], const float* units, const SeenTile<Page>& tile, int64_t begin, int64_t end,
                  State* states, int64_t d, F& fetch) {
    constexpr bool EXACT = std::is_same_v<Sum<Page>, i32x16>;
    Sum<Page> held[ROWS][WIDE] = {};
    if constexpr (!EXACT)
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; ++v) held[row][v] = load(states[row].values() + d + v * LANES);
    const auto add = [&](int64_t place, uint32_t kept) __attribute__((always_inline)) {
        const Page* from = tile.values[place / LANES] + place % LANES / PACK<Page> * tile.value_stride + d * PACK<Page>;
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; ++v) {
            const Page* vector = from + v * LANES * PACK<Page>;
#pragma GCC unroll 2
            for (int part = 0; part < PARTS<Page>; ++part) {
                const u32x16 values = load_bits<u32x16>(afresh<Page>(vector, part)) & kept;
#pragma GCC unroll 8
                for (int row = 0; row < ROWS; ++row)
                    held[row][v] = product<Page>(held[row][v], values, afresh<Page>(weights[row], v) + place, part);
            }
        }
    };
    if constexpr (EXACT) {  // weights of what no row sees are 0
        for (int64_t place = begin - begin % PACK<Page>; place < end; place += PACK<Page>) {
            add(place, ~0u);
            fetch.some();
        }
    } else {
        // A position that no row sees may hold anything, even what is not a number. The other of its pair is seen.
        if (begin % PACK<Page>) add(begin++ - 1, 0xFFFF0000u);
        for (; begin + PACK<Page> <= end; begin += PACK<Page>) {
            add(begin, ~0u);
            fetch.some();
        }
        if (begin < end) add(begin, 0xFFFFu);
    }
#pragma GCC unroll 8
    for (int row = 0; row < ROWS; ++row)
#pragma GCC unroll 4
        for (int v = 0; v < WIDE; ++v) {
            float* to = states[row].values() + d + v * LANES;
            if constexpr (EXACT)
                store(to, load(to) + convert<float>(held[row][v]) * units[row]);
            else
                store(to, held[row][v]);
        }
}

}  // namespace
}  // namespace quire
