// Products with codes whose values are whole numbers, of 8 bits, or of 4 bits through a table.
//
// Panels are those of int8 weights (quantized.cpp). Codes of 4 bits lie in words of eight, as in int4.cpp. Activations
// are quantized in every call, with a scale for each row. The sums of a group are exact integers. Groups are added up
// in float32, from the first to the last. A shift is multiplied with the sum of the activations of its group.
#pragma once

#include "bytes.h"
#include "codes.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace quire {
namespace {

// Position of a number's lowest bit in its word.
inline int place_of_nibble(int64_t number) { return number % 4 * 8 + number % 8 / 4 * 4; }

// Words of codes as words of four int8: one each.
struct Octets {
    static constexpr int EACH = 1;
    static constexpr float unit = 1;
    explicit Octets(const Codes&) {}
    void read(const uint32_t* from, u32x16* words) const { words[0] = load_bits<u32x16>(from); }
};

// Two each: the lower halves of the bytes, and the upper halves, looked up in a table.
struct Nibbles {
    static constexpr int EACH = 2;
    const float unit;
    const int8_t* table;
    explicit Nibbles(const Codes& codes) : unit(codes.unit), table(codes.whole) {}
    void read(const uint32_t* from, u32x16* words) const {
        const auto both = load_bits<u32x16>(from);
        words[0] = at(both & 0x0F0F0F0F);
        words[1] = at(both >> 4 & 0x0F0F0F0F);
    }

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

// Words of a row of activations: whole vectors of LANES bytes.
inline int64_t row_words(const Matrix& matrix) { return (matrix.in + LANES - 1) / LANES * (LANES / 4); }

// Words of a column of codes.
template <class Code>
int64_t code_words(const Matrix& matrix) {
    constexpr int64_t INPUTS = 4 * Code::EACH;
    return (matrix.in + INPUTS - 1) / INPUTS;
}

// A group of a panel: `words` words of each of its columns.
struct GroupWords {
    const uint32_t* from;
    int64_t words;
    const Group& scale;
    const float* sums;  // of the first row's activations, if there are shifts; otherwise null
    bool fetches;       // prefetches what comes next
};

// Add the products of the halves FIRST to LAST - 1 of a group with COUNT rows from `x` on, `stride` words apart.
template <class Code, class Dot, int COUNT, int FIRST, int LAST>
inline void add_group(const Code& code, const GroupWords& group, const uint32_t* x, int64_t stride, Tile<f32x16>& tile) {
    constexpr int PARTS = Code::EACH * Dot::PARTS;
    i32x16 sums[COUNT][2] = {}, excess[2] = {};
    const uint32_t* from = group.from;
    for (int64_t word = 0; word < group.words; ++word, from += COLUMNS, x += PARTS) {
        if (FIRST == 0 && group.fetches) {
            __builtin_prefetch(from + AHEAD);
            __builtin_prefetch(from + AHEAD + LANES);
        }
        u32x16 found[2][Code::EACH];
#pragma GCC unroll 2
        for (int half = FIRST; half < LAST; ++half) code.read(from + half * LANES, found[half]);
#pragma GCC unroll 4
        for (int part = 0; part < PARTS; ++part) {
            u32x16 weights[2];
#pragma GCC unroll 2
            for (int half = FIRST; half < LAST; ++half) {
                weights[half] = Dot::part(found[half][part / Dot::PARTS], part % Dot::PARTS);
                if (ZERO) excess[half] = Dot::dot(excess[half], weights[half], u32x16{} + ZERO * 0x01010101u);
            }
#pragma GCC unroll 16
            for (int row = 0; row < COUNT; ++row) {
                const u32x16 numbers = u32x16{} + x[row * stride + part];
#pragma GCC unroll 2
                for (int half = FIRST; half < LAST; ++half) sums[row][half] = Dot::dot(sums[row][half], weights[half], numbers);
            }
        }
    }
#pragma GCC unroll 16
    for (int row = 0; row < COUNT; ++row)
#pragma GCC unroll 2
        for (int half = FIRST; half < LAST; ++half) {
            f32x16& total = tile.sums[row][half];
            total += convert<float>(sums[row][half] - excess[half]) * group.scale.scales[half];
            if (group.sums) total += group.scale.shifts[half] * group.sums[row * stride];
        }
}

// The products of a panel with COUNT rows. Sums of both halves of a group fit in registers for few rows; for more, the
// second half of a group is read from the L1 cache.
template <class Code, class Dot, int COUNT>
void multiply_byte_tile(const Matrix& matrix, const Code& code, int64_t panel, const uint32_t* x, int64_t stride,
                        bool is_first, Tile<f32x16>& tile) {
    const int64_t words = code_words<Code>(matrix), each = matrix.codes->size / (4 * Code::EACH);
    const uint32_t* from = matrix.panels + panel * words * COLUMNS;
    const auto* sums = reinterpret_cast<const float*>(x + row_words(matrix) * Dot::PARTS);
    for (int row = 0; row < COUNT; ++row) tile.sums[row][0] = tile.sums[row][1] = f32x16{};
    for (int64_t word = 0, number = 0; word < words; word += each, ++number) {
        const Group scale(matrix, panel, number, code.unit);
        const GroupWords group{from + word * COLUMNS, std::min(each, words - word), scale,
                               matrix.codes->shifts ? sums + number : nullptr, is_first && COUNT >= COMPUTING};
        const uint32_t* numbers = x + word * Code::EACH * Dot::PARTS;
        if constexpr (COUNT <= BOTH_HALVES) {
            add_group<Code, Dot, COUNT, 0, 2>(code, group, numbers, stride, tile);
        } else {
            add_group<Code, Dot, COUNT, 0, 1>(code, group, numbers, stride, tile);
            add_group<Code, Dot, COUNT, 1, 2>(code, group, numbers, stride, tile);
        }
    }
}

template <class Code>
using ByteTile = void (*)(const Matrix&, const Code&, int64_t, const uint32_t*, int64_t, bool, Tile<f32x16>&);

template <class Code, class Dot, int... BEFORE>
constexpr std::array<ByteTile<Code>, TILE_ROWS> byte_tiles(std::integer_sequence<int, BEFORE...>) {
    return {multiply_byte_tile<Code, Dot, BEFORE + 1>...};
}

template <class Dot, class Code>
void multiply_all(const Matrix& matrix, const Code& code, const void* x, int64_t rows, const Output& output) {
    static constexpr auto MULTIPLY = byte_tiles<Code, Dot>(std::make_integer_sequence<int, TILE_ROWS>());
    const int64_t size = matrix.codes->size, groups = matrix.codes->shifts ? matrix.codes->groups(matrix.in) : 0;
    const Quantized source = quantize_rows<Dot>(matrix, x, rows, row_words(matrix), groups, [&](const uint8_t* bytes, uint32_t* after) {
        for (int64_t group = 0; group < groups; ++group) {
            int32_t sum = 0;
            for (int64_t at = group * size; at < std::min((group + 1) * size, matrix.in); ++at) sum += int8_t(bytes[at] - ZERO);
            reinterpret_cast<float*>(after)[group] = float(sum);
        }
    });
    const int64_t tiles = (rows + TILE_ROWS - 1) / TILE_ROWS, parts = (tiles + TASK_ROWS / TILE_ROWS - 1) / (TASK_ROWS / TILE_ROWS);
    parallel_for(parts * matrix.count(), [&](int64_t task, int) {
        const int64_t panel = task / parts, part = task % parts;
        const int64_t first = part * tiles / parts;
        for (int64_t number = first; number < (part + 1) * tiles / parts; ++number) {
            const int64_t row = number * rows / tiles;
            const int count = int((number + 1) * rows / tiles - row);
            Tile<f32x16> tile;
            MULTIPLY[count - 1](matrix, code, panel, source.rows.words + row * source.rows.stride, source.rows.stride,
                                number == first, tile);
            for (int each = 0; each < count; ++each)
                for (f32x16& sums : tile.sums[each]) sums *= source.scales[row + each];
            finish_tile(matrix, output, panel, row, count, tile);
        }
    });
}

template <class Code>
void multiply_bytes(const Matrix& matrix, const Code& code, const void* x, int64_t rows, const Output& output) {
    if (rows <= FEW_ROWS) {
        multiply_all<FewRows>(matrix, code, x, rows, output);
    } else {
        multiply_all<Int8>(matrix, code, x, rows, output);
    }
}

// A dequantized row: `write(input, weight)` for each.
template <class Code, class Write>
void read_row(const Matrix& matrix, const Code&, int64_t row, const Write& write) {
    const Codes& codes = *matrix.codes;
    const int64_t column = row % COLUMNS, half = column / LANES, lane = column % LANES;
    const uint32_t* from = matrix.panels + row / COLUMNS * code_words<Code>(matrix) * COLUMNS + column;
    for (int64_t at = 0; at < matrix.in;) {
        const Group group(matrix, row / COLUMNS, at / codes.size, 1);
        const float scale = group.scales[half][lane], shift = group.shifts[half][lane];
        for (const int64_t end = std::min(at + codes.size, matrix.in); at < end; ++at) {
            const uint32_t word = from[at / (4 * Code::EACH) * COLUMNS];
            const float value = Code::EACH == 1 ? int8_t(word >> at % 4 * 8) : codes.table[word >> place_of_nibble(at) & 15];
            write(at, value * scale + shift);
        }
    }
}

}  // namespace
}  // namespace quire
