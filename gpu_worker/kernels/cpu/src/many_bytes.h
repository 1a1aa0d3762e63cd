// Products of more than a few rows with int8 weights, on processors that have AVX2 and no instruction for four bytes.
//
// `vpmaddubsw` multiplies unsigned bytes with signed ones, and two products fit into 16 bits. So weights lose their signs
// and activations get them: from a word of a row and its negative, side by side, `vpshufb` takes for each weight the one
// or the other. Of a processor's four vector units two multiply, and `vpshufb` is for the other two. `vpsignb` would be
// for one of the former, too, as are additions: Zen 3 then computes 23 products in a cycle instead of 28.
//
// A part of a panel is prepared in the L1 cache, and all tiles of a task share it. The innermost loop reads words in
// their order:
//
//     sizes    word 0: output 0, 1, .. 15 │ word 1: output 0 ..       activations   word 0: row 0, its negative, row 1 ..
//     places   word 0: output 0, 1, .. 15 │ word 1: output 0 ..                     word 1: row 0, its negative, row 1 ..
#pragma once

#include "bytes.h"

namespace quire {
namespace {

#if QUIRE_AVX2_ALONE

constexpr int64_t MANY = 2 * TILE_ROWS;  // more rows than these make up for the preparation
constexpr int MANY_ROWS = 4;  // of a tile; sums and weights of more do not fit into registers
constexpr int64_t PART_WORDS = 64;  // of a column; as sizes and places, 32 columns of them fill half of an L1 cache
constexpr int64_t MANY_TILES = TASK_ROWS / MANY_ROWS;  // of a task

// A part of a panel, for each half of its columns.
struct Part {
    alignas(64) uint32_t sizes[2][PART_WORDS * LANES];
    alignas(64) uint32_t places[2][PART_WORDS * LANES];  // of a byte of a row's word, or of its negative

    void fill(const uint32_t* panel, int64_t words) {
        for (int64_t at = 0; at < words * LANES; at += LANES, panel += COLUMNS)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const auto weights = load_bits<u32x16>(panel + half * LANES);
                store_bits(sizes[half] + at, by_part([](auto part) { return (Register<uint32_t>)_mm256_abs_epi8((__m256i)part); }, weights));
                store_bits(places[half] + at, ((weights >> 5) & 0x04040404) | 0x03020100);
            }
    }
};

// Add the products of COUNT rows with `words` words of one half of the columns to `tile`, or to 0 if a panel `begins` with
// them. FETCHES: a line is prefetched from `later` on for each word.
template <int COUNT, bool FETCHES>
void add_words(const uint32_t* x, const uint32_t* sizes, const uint32_t* places, int64_t words, const uint32_t* later,
               bool begins, int half, Tile<i32x16>& tile) {
    const auto part = [](const uint32_t* from) { return _mm256_load_si256(reinterpret_cast<const __m256i*>(from)); };
    const __m256i ones = _mm256_set1_epi16(1);
    Register<int32_t> low[COUNT] = {}, high[COUNT] = {};
    if (!begins)
#pragma GCC unroll 4
        for (int row = 0; row < COUNT; ++row) low[row] = tile.sums[row][half].low, high[row] = tile.sums[row][half].high;
    for (const uint32_t* end = sizes + words * LANES; sizes < end; sizes += LANES, places += LANES, later += LANES) {
        if (FETCHES) __builtin_prefetch(later);
        const __m256i low_sizes = part(sizes), high_sizes = part(sizes + PART), low_places = part(places), high_places = part(places + PART);
#pragma GCC unroll 4
        for (int row = 0; row < COUNT; ++row, x += 2) {
            const __m256i both = _mm256_set1_epi64x(load_bits<int64_t>(x));
            const __m256i low_pairs = _mm256_maddubs_epi16(low_sizes, _mm256_shuffle_epi8(both, low_places));
            const __m256i high_pairs = _mm256_maddubs_epi16(high_sizes, _mm256_shuffle_epi8(both, high_places));
            low[row] = added(low[row], _mm256_madd_epi16(low_pairs, ones));
            high[row] = added(high[row], _mm256_madd_epi16(high_pairs, ones));
        }
    }
#pragma GCC unroll 4
    for (int row = 0; row < COUNT; ++row) tile.sums[row][half] = {low[row], high[row]};
}

using AddWords = void (*)(const uint32_t*, const uint32_t*, const uint32_t*, int64_t, const uint32_t*, bool, int, Tile<i32x16>&);

template <bool FETCHES, int... BEFORE>
constexpr std::array<AddWords, MANY_ROWS> adding(std::integer_sequence<int, BEFORE...>) {
    return {add_words<BEFORE + 1, FETCHES>...};
}
template <bool FETCHES>
constexpr auto ADD_WORDS = adding<FETCHES>(std::make_integer_sequence<int, MANY_ROWS>());

// Tiles of rows: for each word, the word and its negative of each row.
struct ManyRows {
    int64_t rows, tiles, words;
    const uint32_t* numbers;

    int64_t row(int64_t tile) const { return tile * rows / tiles; }
    const uint32_t* of(int64_t tile) const { return numbers + 2 * words * row(tile); }
};

// The negatives of four bytes.
inline uint32_t negative(uint32_t bytes) { return ((~bytes & 0x7F7F7F7F) + 0x01010101) ^ (~bytes & 0x80808080); }

inline ManyRows in_tiles(const Rows& bytes, int64_t words) {
    static thread_local std::vector<uint32_t> memory;
    if (int64_t(memory.size()) < 2 * words * bytes.count) memory.resize(2 * words * bytes.count);
    uint32_t* const numbers = memory.data();
    const ManyRows found{bytes.count, (bytes.count + MANY_ROWS - 1) / MANY_ROWS, words, numbers};
    prepare(found.tiles, [&](int64_t tile, int) {
        const int64_t first = found.row(tile), count = found.row(tile + 1) - first;
        for (int64_t row = 0; row < count; ++row) {
            const uint32_t* from = bytes.words + (first + row) * bytes.stride;
            uint32_t* to = numbers + 2 * (words * first + row);
            for (int64_t word = 0; word < words; ++word, to += 2 * count) {
                to[0] = from[word];
                to[1] = negative(from[word]);
            }
        }
    });
    return found;
}

// As `for_each_tile`, but with all panels for some rows before the next rows: activations, of twice the bytes, stay in the
// L2 cache. The first tile of a task prefetches the panel's next part while it is multiplied.
template <class Finish>
void for_each_tile_of_many(const ManyRows& x, const uint32_t* panels, int64_t count, const Finish& finish) {
    const int64_t parts = (x.tiles + MANY_TILES - 1) / MANY_TILES;
    parallel_for(parts * count, [&](int64_t task, int) {
        const int64_t panel = task % count, part = task / count;
        const int64_t first = part * x.tiles / parts, last = (part + 1) * x.tiles / parts;
        const uint32_t* from = panels + panel * x.words * COLUMNS;
        Tile<i32x16> sums[MANY_TILES];
        Part weights;
        for (int64_t begin = 0; begin < x.words; begin += PART_WORDS) {
            const int64_t words = std::min(PART_WORDS, x.words - begin);
            weights.fill(from + begin * COLUMNS, words);
            const uint32_t* later = from + (begin + words) * COLUMNS;
            for (int64_t tile = first; tile < last; ++tile) {
                const int64_t rows = x.row(tile + 1) - x.row(tile);
                const auto add = (tile == first ? ADD_WORDS<true> : ADD_WORDS<false>)[rows - 1];
                for (int half = 0; half < 2; ++half)
                    add(x.of(tile) + 2 * begin * rows, weights.sizes[half], weights.places[half], words,
                        later + half * words * LANES, begin == 0, half, sums[tile - first]);
            }
        }
        for (int64_t tile = first; tile < last; ++tile)
            finish(panel, x.row(tile), int(x.row(tile + 1) - x.row(tile)), sums[tile - first]);
    });
}

#endif

}  // namespace
}  // namespace quire
