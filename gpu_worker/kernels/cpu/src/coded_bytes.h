// Products with codes whose values are whole numbers: of 8 bits, of 5 or 6 bits, or of 4 bits through a table.
//
// Panels are those of int8 weights (quantized.cpp), in units of inputs. Codes of 4 bits lie in words of eight, as in
// int4.cpp. Those of 5 and 6 bits have their lower 4 bits in such words. The upper bits of a whole unit are one more word:
//
//     unit 0 of 6 bits                                                            unit 1
//     inputs 0 to 7: output 0, 1, .. 31 │ inputs 8 to 15 │ upper bits of all 16   inputs 16 to 23 ..
//
// Activations are quantized in every call, with a scale for each group, or for parts of one (`Codes::part`). The sums of a
// part are exact integers. Parts are added up in float32, from the first to the last. A shift is multiplied with the sum of
// the activations of a part. After its bytes a row has, for each part, what sums begin with, if codes are unsigned; the sum
// of its activations, if there are shifts; and its scale.
//
// Values from -32 to 31 are unsigned in products, less the lowest of them. The sums of a part begin with the lowest value
// times the sum of the part's activations. So are all others where an instruction wants unsigned numbers (ZERO, bytes.h).
#pragma once

#include "bytes.h"
#include "codes.h"
#include "unit_groups.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace quire {
namespace {

// Position of a number's lowest bit in its word.
inline int place_of_nibble(int64_t number) { return number % 4 * 8 + number % 8 / 4 * 4; }

// A unit has INPUTS codes of a column, in WORDS words. READS times EACH words of four numbers are read from it, int8 or, if
// UNSIGNED, less the lowest.
struct Octets {
    static constexpr int INPUTS = 4, WORDS = 1, READS = 1, EACH = 1;
    static constexpr bool UNSIGNED = ZERO != 0;
    static constexpr int32_t lowest = -ZERO;
    static constexpr float unit = 1;
    explicit Octets(const Codes&) {}
    void read(const uint32_t* from, int, u32x16* words) const { words[0] = load_bits<u32x16>(from); }
    void put(uint32_t* to, int64_t at, uint8_t number) const { *to |= uint32_t(number ^ ZERO) << at * 8; }
    float value(const uint32_t* from, int64_t at) const { return int8_t((*from >> at * 8) ^ ZERO); }
};

// The lower halves of the bytes, and the upper halves, looked up in a table.
template <bool SMALL>
struct Nibbles {
    static constexpr int INPUTS = 8, WORDS = 1, READS = 1, EACH = 2;
    static constexpr bool UNSIGNED = SMALL || ZERO != 0;
    const int32_t lowest;
    const float unit;
    const float* values;
    int8_t table[16];
    explicit Nibbles(const Codes& codes) : lowest(SMALL ? codes.lowest : -ZERO), unit(codes.unit), values(codes.table) {
        for (int at = 0; at < 16; ++at) table[at] = int8_t(codes.whole[at] - (SMALL ? 0 : lowest));
    }
    void read(const uint32_t* from, int, u32x16* words) const {
        const auto both = load_bits<u32x16>(from);
        words[0] = at(both & 0x0F0F0F0F);
        words[1] = at(both >> 4 & 0x0F0F0F0F);
    }
    void put(uint32_t* to, int64_t at, uint8_t number) const { *to |= uint32_t(number) << place_of_nibble(at); }
    float value(const uint32_t* from, int64_t at) const { return values[*from >> place_of_nibble(at) & 15]; }

private:
    u32x16 at(u32x16 places) const {
#if defined(__AVX512BW__)
        const __m512i same = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i*)table));
        return (u32x16)_mm512_shuffle_epi8(same, (__m512i)places);
#elif defined(__AVX2__)
        const __m256i same = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i*)table));
        return by_part([&](auto part) { return (Register<uint32_t>)_mm256_shuffle_epi8(same, (__m256i)part); }, places);
#elif defined(__aarch64__)
        const int8x16_t same = vld1q_s8(table);
        return by_part([&](auto part) { return (Register<uint32_t>)vqtbl1q_s8(same, (uint8x16_t)part); }, places);
#else
        uint8_t bytes[4 * LANES];
        store_bits(bytes, places);
        for (uint8_t& byte : bytes) byte = uint8_t(table[byte]);
        return load_bits<u32x16>(bytes);
#endif
    }
};

// Codes with UPPER bits more than 4. A byte of the last word has the upper bits of the same byte of all words of four.
template <int UPPER>
struct Split {
    static constexpr int INPUTS = 32 / UPPER, WORDS = INPUTS / 8 + 1, READS = INPUTS / 8, EACH = 2;
    static constexpr bool UNSIGNED = true;
    static constexpr float unit = 1;
    const int32_t lowest;
    explicit Split(const Codes& codes) : lowest(codes.lowest) {}
    void read(const uint32_t* from, int number, u32x16* words) const {
        const auto both = load_bits<u32x16>(from + number * COLUMNS);
        const auto upper = load_bits<u32x16>(from + (WORDS - 1) * COLUMNS);
        words[0] = (both & 0x0F0F0F0F) | moved(upper, 2 * number);
        words[1] = (both >> 4 & 0x0F0F0F0F) | moved(upper, 2 * number + 1);
    }
    void put(uint32_t* to, int64_t at, uint8_t number) const {
        const uint32_t bits = int8_t(number) - lowest;
        to[at / 8 * COLUMNS] |= (bits & 15) << place_of_nibble(at);
        to[(WORDS - 1) * COLUMNS] |= bits >> 4 << place_of_upper(at);
    }
    float value(const uint32_t* from, int64_t at) const {
        const uint32_t bits = from[at / 8 * COLUMNS] >> place_of_nibble(at) & 15;
        return float(int32_t(bits | (from[(WORDS - 1) * COLUMNS] >> place_of_upper(at) & ((1 << UPPER) - 1)) << 4) + lowest);
    }

private:
    static int place_of_upper(int64_t at) { return int(at % 4 * 8 + at / 4 * UPPER); }

    // The upper bits of a word of four, where they belong.
    static u32x16 moved(u32x16 upper, int word) {
        const int left = 4 - word * UPPER;
        return (left < 0 ? upper >> -left : upper << left) & (((1 << UPPER) - 1) * 0x10101010u);
    }
};

// Units of a column of codes.
template <class Code>
int64_t units_of(const Matrix& matrix) {
    return (matrix.in + Code::INPUTS - 1) / Code::INPUTS;
}

// Words of a panel.
template <class Code>
int64_t panel_words(const Matrix& matrix) {
    return units_of<Code>(matrix) * Code::WORDS * COLUMNS;
}

// Words of the bytes of a row of activations: whole units, and whole vectors of LANES bytes, of each part. Codes of what a
// unit has more than a vector are 0. `rest`: where parts are no whole vectors, what is written of the last one's.
template <class Code>
int64_t row_words(const Matrix& matrix) {
    constexpr int64_t INPUTS = std::max(Code::INPUTS, LANES);
    const int64_t rest = matrix.codes->size % LANES ? LANES / 4 : 0;
    return (matrix.in + INPUTS - 1) / INPUTS * (INPUTS / 4) + rest;
}

// What rows of activations have for parts, in words from the bytes of a row on: see above. -1: nothing.
template <class Code, class Dot>
struct PartPlaces {
    int64_t starts, sums, scales, end;

    explicit PartPlaces(const Matrix& matrix) {
        const int64_t parts = matrix.codes->parts(matrix.in);
        int64_t at = row_words<Code>(matrix) * Dot::PARTS;
        const auto take = [&](bool taken) { return taken ? std::exchange(at, at + parts) : -1; };
        starts = take(Code::UNSIGNED), sums = take(bool(matrix.codes->shifts)), scales = take(true), end = at;
    }
};

// What the first row of a tile has for a part. There may be no starts, or no sums.
struct RowPart {
    const uint32_t* starts;
    const float *sums, *scales;

    template <class Places>
    RowPart(const Places& places, const uint32_t* row, int64_t part)
        : starts(places.starts < 0 ? nullptr : row + places.starts + part),
          sums(places.sums < 0 ? nullptr : reinterpret_cast<const float*>(row) + places.sums + part),
          scales(reinterpret_cast<const float*>(row) + places.scales + part) {}

    RowPart(const RowPart& first, int64_t parts)
        : starts(first.starts ? first.starts + parts : nullptr),
          sums(first.sums ? first.sums + parts : nullptr),
          scales(first.scales + parts) {}
};

// A part of a panel.
struct GroupUnits {
    const uint32_t* from;
    int64_t units;
    Group scale;
    RowPart row;
};

// Add the products of words that were read, those of the halves FIRST to LAST - 1, with COUNT rows from `x` on.
template <class Code, class Dot, int COUNT, int FIRST, int LAST>
inline void add_words(const u32x16 (&found)[2][Code::EACH], const uint32_t* x, int64_t stride, i32x16 (&sums)[COUNT][2]) {
    if constexpr (Code::UNSIGNED) {
#pragma GCC unroll 2
        for (int word = 0; word < Code::EACH; word += Dot::WORDS)
#pragma GCC unroll 16
            for (int row = 0; row < COUNT; ++row) {
                u32x16 numbers[Dot::WORDS];
#pragma GCC unroll 2
                for (int each = 0; each < Dot::WORDS; ++each) numbers[each] = u32x16{} + x[row * stride + word + each];
#pragma GCC unroll 2
                for (int half = FIRST; half < LAST; ++half)
                    sums[row][half] = Dot::dot(sums[row][half], &found[half][word], numbers);
            }
    } else {
#pragma GCC unroll 4
        for (int part = 0; part < Code::EACH * Dot::PARTS; ++part) {
            u32x16 weights[2];
#pragma GCC unroll 2
            for (int half = FIRST; half < LAST; ++half) weights[half] = Dot::part(found[half][part / Dot::PARTS], part % Dot::PARTS);
#pragma GCC unroll 16
            for (int row = 0; row < COUNT; ++row) {
                const u32x16 numbers = u32x16{} + x[row * stride + part];
#pragma GCC unroll 2
                for (int half = FIRST; half < LAST; ++half) sums[row][half] = Dot::dot(sums[row][half], weights[half], numbers);
            }
        }
    }
}

// Add the products of the halves FIRST to LAST - 1 of a group with COUNT rows from `x` on, `stride` words apart, to `totals`.
// `fetch(from)` prefetches while the unit at `from` is multiplied.
template <class Code, class Dot, int COUNT, int FIRST, int LAST, class Fetch, class Totals>
inline void add_group(const Code& code, const GroupUnits& group, const uint32_t* x, int64_t stride, const Fetch& fetch, Totals& totals) {
    i32x16 sums[COUNT][2] = {};
    if constexpr (Code::UNSIGNED)
#pragma GCC unroll 16
        for (int row = 0; row < COUNT; ++row) sums[row][0] = sums[row][1] = (i32x16)(u32x16{} + group.row.starts[row * stride]);
    const uint32_t* from = group.from;
    for (int64_t unit = 0; unit < group.units; ++unit, from += Code::WORDS * COLUMNS) {
        if (FIRST == 0) fetch(from);
#pragma GCC unroll 4
        for (int number = 0; number < Code::READS; ++number, x += Code::EACH * Dot::PARTS) {
            u32x16 found[2][Code::EACH];
#pragma GCC unroll 2
            for (int half = FIRST; half < LAST; ++half) code.read(from + half * LANES, number, found[half]);
            add_words<Code, Dot, COUNT, FIRST, LAST>(found, x, stride, sums);
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 2
        for (int half = FIRST; half < LAST; ++half) {
            f32x16& total = totals[row][half];
            total += convert<float>(sums[row][half]) * (group.scale.scales[half] * group.row.scales[row * stride]);
            if (group.row.sums) total += group.scale.shifts[half] * group.row.sums[row * stride];
        }
}

// The same for both halves. If their sums do not fit in registers, the second half is read from the L1 cache.
template <class Code, class Dot, int COUNT, class Fetch, class Totals>
inline void add_halves(const Code& code, const GroupUnits& group, const uint32_t* x, int64_t stride, const Fetch& fetch, Totals& totals) {
    if constexpr (COUNT <= BOTH_HALVES) {
        add_group<Code, Dot, COUNT, 0, 2>(code, group, x, stride, fetch, totals);
    } else {
        add_group<Code, Dot, COUNT, 0, 1>(code, group, x, stride, fetch, totals);
        add_group<Code, Dot, COUNT, 1, 2>(code, group, x, stride, fetch, totals);
    }
}

// Prefetch SIZE words.
template <int SIZE>
inline void fetch_words(const uint32_t* from) {
#pragma GCC unroll 16
    for (int at = 0; at < SIZE; at += LANES) __builtin_prefetch(from + at);
}

// The products of a panel with COUNT rows, at most ALONE: it is read from its beginning to its end.
constexpr int ALONE = std::min(TILE_ROWS, 8);
template <class Code, class Dot, int COUNT>
void multiply_alone(const Matrix& matrix, const Code& code, int64_t panel, const uint32_t* x, int64_t stride, Tile<f32x16>& tile) {
    const Codes& codes = *matrix.codes;
    const int64_t units = units_of<Code>(matrix), each = codes.part(matrix.in) / Code::INPUTS;
    const uint32_t* from = matrix.panels + panel * panel_words<Code>(matrix);
    const RowPart first(PartPlaces<Code, Dot>(matrix), x, 0);
    GroupReader groups(matrix, panel, 0, code.unit, codes.parts_of_group(matrix.in));
    for (int row = 0; row < COUNT; ++row) tile.sums[row][0] = tile.sums[row][1] = f32x16{};
    for (int64_t unit = 0, number = 0; unit < units; unit += each, ++number) {
        const GroupUnits group{from + unit * Code::WORDS * COLUMNS, std::min(each, units - unit), groups.next(), {first, number}};
        const auto fetch = [](const uint32_t* from) {
            if (COUNT >= COMPUTING) fetch_words<Code::WORDS * COLUMNS>(from + AHEAD);
        };
        add_halves<Code, Dot, COUNT>(code, group, x + unit * (Code::INPUTS / 4) * Dot::PARTS, stride, fetch, tile.sums);
    }
}

// More rows are multiplied with a block of a panel at a time, tile by tile, while it is in the L1 cache. Half of AVX-512's
// registers hold a tile's sums of a group, and half those of all groups: on Zen 4 storing these after each group took a third
// of a product's time.
constexpr int64_t BLOCK_INPUTS = 256;
constexpr int BLOCK_ROWS = PART == 16 ? TILE_ROWS / 2 : TILE_ROWS;
using BlockSums = f32x16[BLOCK_ROWS][2];

// Whole parts of a panel. There may be no shifts.
struct GroupBlock {
    const uint32_t* from;
    int64_t units, each;  // of all its parts, and of one; the last one may have fewer
    alignas(64) float scales[BLOCK_INPUTS / 8][COLUMNS], shifts[BLOCK_INPUTS / 8][COLUMNS];
};

// What a tile has for a block: of its first row, and of further rows `stride` words on.
struct BlockRows {
    const uint32_t* x;
    int64_t stride;
    RowPart first;               // of the block's first part
    const uint32_t *next, *end;  // the part of the next block that is prefetched meanwhile
    bool half;                   // half as fast as this block is read
};

// Add the products of a block with COUNT rows to their sums.
template <class Code, class Dot, int COUNT>
void multiply_block(const Code& code, const GroupBlock& block, const BlockRows& rows, BlockSums& kept) {
    f32x16 totals[COUNT][2];
#pragma GCC unroll 16
    for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) totals[row][half] = kept[row][half];
    const uint32_t* next = rows.next;
    const auto fetch = [&](const uint32_t*) {
        if (next >= rows.end) return;
        constexpr int SIZE = Code::WORDS * COLUMNS;
        if (rows.half)
            fetch_words<SIZE / 2>(next), next += SIZE / 2;
        else
            fetch_words<SIZE>(next), next += SIZE;
    };
    for (int64_t unit = 0, number = 0; unit < block.units; unit += block.each, ++number) {
        const float *scales = block.scales[number], *shifts = block.shifts[number];
        const GroupUnits group{block.from + unit * Code::WORDS * COLUMNS, std::min(block.each, block.units - unit),
                               {{load(scales), load(scales + LANES)}, {load(shifts), load(shifts + LANES)}}, {rows.first, number}};
        add_halves<Code, Dot, COUNT>(code, group, rows.x + unit * (Code::INPUTS / 4) * Dot::PARTS, rows.stride, fetch, totals);
    }
#pragma GCC unroll 16
    for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) kept[row][half] = totals[row][half];
}

template <class Code>
using MultiplyAlone = void (*)(const Matrix&, const Code&, int64_t, const uint32_t*, int64_t, Tile<f32x16>&);
template <class Code>
using MultiplyBlock = void (*)(const Code&, const GroupBlock&, const BlockRows&, BlockSums&);

template <class Code, class Dot, int... BEFORE>
constexpr std::array<MultiplyAlone<Code>, ALONE> alone_of(std::integer_sequence<int, BEFORE...>) {
    return {multiply_alone<Code, Dot, BEFORE + 1>...};
}
template <class Code, class Dot, int... BEFORE>
constexpr std::array<MultiplyBlock<Code>, BLOCK_ROWS> blocks_of(std::integer_sequence<int, BEFORE...>) {
    return {multiply_block<Code, Dot, BEFORE + 1>...};
}

// The products of a panel with tiles from `first` on, before `last`, of rows of `x`: `row_of(tile)` is a tile's first row. `sums`:
// of each tile.
template <class Code, class Dot, class RowOf>
void multiply_in_blocks(const Matrix& matrix, const Code& code, int64_t panel, const Rows& x, int64_t first, int64_t last,
                        const RowOf& row_of, BlockSums* sums) {
    static constexpr auto MULTIPLY = blocks_of<Code, Dot>(std::make_integer_sequence<int, BLOCK_ROWS>());
    const Codes& codes = *matrix.codes;
    const int64_t size = codes.part(matrix.in), groups = codes.parts(matrix.in), units = units_of<Code>(matrix), each = size / Code::INPUTS;
    const int64_t at_once = std::max<int64_t>(BLOCK_INPUTS / size, 1);
    const PartPlaces<Code, Dot> places(matrix);
    std::fill(&sums[0][0][0], &sums[last - first][0][0], f32x16{});
    GroupReader reader(matrix, panel, 0, code.unit, codes.parts_of_group(matrix.in));
    GroupBlock block;
    block.from = matrix.panels + panel * panel_words<Code>(matrix);
    block.each = each;
    for (int64_t group = 0; group < groups; group += at_once, block.from += block.units * Code::WORDS * COLUMNS) {
        const int64_t now = std::min(at_once, groups - group), unit = group * each;
        block.units = std::min(now * each, units - unit);
        for (int64_t number = 0; number < now; ++number) {
            const Group found = reader.next();
            for (int half = 0; half < 2; ++half) {
                store(block.scales[number] + half * LANES, found.scales[half]);
                if (codes.shifts) store(block.shifts[number] + half * LANES, found.shifts[half]);
            }
        }
        const int64_t words = block.units * Code::WORDS * COLUMNS;
        for (int64_t tile = first; tile < last; ++tile) {
            const uint32_t *own = x.words + row_of(tile) * x.stride, *next = block.from + words;
            const BlockRows rows{own + unit * (Code::INPUTS / 4) * Dot::PARTS, x.stride, {places, own, group},
                                 next + (tile - first) * words / (last - first), next + (tile - first + 1) * words / (last - first),
                                 last - first > 1};
            MULTIPLY[row_of(tile + 1) - row_of(tile) - 1](code, block, rows, sums[tile - first]);
        }
    }
}

#if QUIRE_MATRIX_UNITS
// Unpack `count` parts of a panel from `first` on.
template <class Code>
void unpack(const Matrix& matrix, const Code& code, int64_t panel, int64_t first, int64_t count, UnitPart& part) {
    const int64_t size = matrix.codes->part(matrix.in), each = size / Code::INPUTS, begin = first * each, end = begin + count * each;
    const uint32_t* from = matrix.panels + panel * panel_words<Code>(matrix) + begin * Code::WORDS * COLUMNS;
    uint32_t* to = part.words;
    const int64_t last = std::min(end, units_of<Code>(matrix));
    for (int64_t unit = begin; unit < last; ++unit, from += Code::WORDS * COLUMNS) {
#pragma GCC unroll 16
        for (int at = 0; at < Code::WORDS * COLUMNS; at += LANES) __builtin_prefetch(from + AHEAD + at);
#pragma GCC unroll 4
        for (int number = 0; number < Code::READS; ++number, to += Code::EACH * COLUMNS)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                u32x16 found[Code::EACH];
                code.read(from + half * LANES, number, found);
#pragma GCC unroll 2
                for (int word = 0; word < Code::EACH; ++word)
                    store_bits(to + word * COLUMNS + half * LANES, sum_of_bytes(found[word], Code::UNSIGNED ? code.lowest : 0));
            }
    }
    // Nothing was unpacked behind the panel's last unit. Activations after a row's last vector may be anything.
    constexpr int64_t INPUTS = std::min(Code::INPUTS, LANES);
    const int64_t given = (matrix.in + INPUTS - 1) / INPUTS * INPUTS - first * size, all = count * size;
    if (given < all) std::fill(part.words + given / 4 * COLUMNS, part.words + all / 4 * COLUMNS, 0);
    GroupReader groups(matrix, panel, first, code.unit, matrix.codes->parts_of_group(matrix.in));
    for (int64_t group = 0; group < count; ++group) {
        const Group found = groups.next();
        for (int half = 0; half < 2; ++half) {
            store(part.scales + group * COLUMNS + half * LANES, found.scales[half]);
            if (matrix.codes->shifts) store(part.shifts + group * COLUMNS + half * LANES, found.shifts[half]);
        }
    }
}
#endif

template <class Dot, class Code>
void multiply_all(const Matrix& matrix, const Code& code, const void* x, int64_t rows, const Output& output) {
    static constexpr auto MULTIPLY = alone_of<Code, Dot>(std::make_integer_sequence<int, ALONE>());
    const Codes& codes = *matrix.codes;
    const int64_t size = codes.part(matrix.in), all = codes.parts(matrix.in);
    const PartPlaces<Code, Dot> places(matrix);
    const Rows source = quantize_in_groups(matrix, x, rows, size, places.end, places.scales, [&](uint32_t* row) {
        const auto* bytes = reinterpret_cast<const int8_t*>(row);
        auto* numbers = reinterpret_cast<float*>(row);
        for (int64_t part = 0; (Code::UNSIGNED || codes.shifts) && part < all; ++part) {
            const int32_t sum = sum_of(bytes + part * size, std::min(size, matrix.in - part * size));
            if (Code::UNSIGNED) row[places.starts + part] = uint32_t(sum * code.lowest);
            if (codes.shifts) numbers[places.sums + part] = float(sum) * numbers[places.scales + part];
        }
        take_apart<Dot>(row, row_words<Code>(matrix));
    });
    const auto finish_sums = [&](int64_t panel, int64_t row, int count, Tile<f32x16>& tile) { finish_tile(matrix, output, panel, row, count, tile); };
#if QUIRE_MATRIX_UNITS
    if (units_gain(rows, size)) {
        const auto unpacks = [&](int64_t panel, int64_t first, int64_t count, UnitPart& part) { unpack(matrix, code, panel, first, count, part); };
        return for_each_tile_of_groups(matrix, size, source, {places.scales, places.sums}, unpacks, finish_sums);
    }
#endif
    if (rows <= ALONE)
        return parallel_for(rows ? matrix.count() : 0, [&](int64_t panel, int) {
            Tile<f32x16> tile;
            MULTIPLY[rows - 1](matrix, code, panel, source.words, source.stride, tile);
            finish_sums(panel, 0, int(rows), tile);
        });
    constexpr int64_t MOST_TILES = TASK_ROWS / BLOCK_ROWS;
    const int64_t tiles = (rows + BLOCK_ROWS - 1) / BLOCK_ROWS, parts = (tiles + MOST_TILES - 1) / MOST_TILES;
    const auto row_of = [&](int64_t tile) { return tile * rows / tiles; };
    parallel_for(parts * matrix.count(), [&](int64_t task, int) {
        const int64_t panel = task / parts, first = task % parts * tiles / parts, last = (task % parts + 1) * tiles / parts;
        BlockSums sums[MOST_TILES];
        multiply_in_blocks<Code, Dot>(matrix, code, panel, source, first, last, row_of, sums);
        for (int64_t tile = first; tile < last; ++tile) {
            const int64_t count = row_of(tile + 1) - row_of(tile);
            Tile<f32x16> found;
            std::copy_n(&sums[tile - first][0][0], 2 * count, &found.sums[0][0]);
            finish_sums(panel, row_of(tile), int(count), found);
        }
    });
}

template <class Code>
void multiply_bytes(const Matrix& matrix, const Code& code, const void* x, int64_t rows, const Output& output) {
    if constexpr (Code::UNSIGNED) {
        multiply_all<Unsigned>(matrix, code, x, rows, output);
    } else if (rows <= FEW_ROWS) {
        multiply_all<FewRows>(matrix, code, x, rows, output);
    } else {
        multiply_all<Int8>(matrix, code, x, rows, output);
    }
}

// A dequantized row: `write(input, weight)` for each.
template <class Code, class Write>
void read_row(const Matrix& matrix, const Code& code, int64_t row, const Write& write) {
    const int64_t panel = row / COLUMNS, column = row % COLUMNS, half = column / LANES, lane = column % LANES;
    const uint32_t* from = matrix.panels + panel * panel_words<Code>(matrix) + column;
    GroupReader groups(matrix, panel, 0, 1);
    for (int64_t at = 0; at < matrix.in;) {
        const Group group = groups.next();
        const float scale = group.scales[half][lane], shift = group.shifts[half][lane];
        for (const int64_t end = std::min(at + matrix.codes->size, matrix.in); at < end; ++at)
            write(at, code.value(from + at / Code::INPUTS * Code::WORDS * COLUMNS, at % Code::INPUTS) * scale + shift);
    }
}

}  // namespace
}  // namespace quire
