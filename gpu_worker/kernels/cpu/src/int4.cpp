// Products with weights of 4 bits: as quantized.cpp, with little more than half the bytes to read.
//
// 32 weights along `in` are a group. A weight is a whole number, -8 to 7, times the group's scale, a float16: 4.5 bits
// a weight. The groups of a panel follow each other, nine cache lines each:
//
//     group 0                                                                          group 1
//     scales of output 0, 1, .. 31 │ word 0: output 0, 1, .. 31 │ word 1 │ 2 │ word 3   scales of ..
//
// A word is eight weights of one output, stored 8 higher, unsigned. Numbers 0 to 3 are the lower halves of its bytes,
// numbers 4 to 7 the upper halves, so that a mask gives four bytes in the order of the activations' bytes. The sums of
// a group are exact integers. Groups are added up in float32, from the first to the last.
//
// A checkpoint's weights may have zero points, and then a weight is a whole number times the scale, and a shift. One or
// several groups share a shift, a float16. Shifts lie apart, in the order of panels, groups and columns. A shift is
// multiplied with the sum of the activations as they are rounded, once for all of its weights.
#include "activations.h"
#include "dot.h"
#include "half.h"
#include "tape.h"
#include "unit_groups.h"

namespace quire {
namespace {

constexpr int GROUP = 32;
constexpr int WORDS = GROUP / 8;
constexpr int OFFSET = 8;

// Words of a group's activations. After the bytes of all groups a row has an excess for each group: OFFSET times the
// sum of its numbers, by which sums with the group's unsigned weights are too large. Then it has a scale for each group.
constexpr int BYTE_WORDS = GROUP / 4;

int64_t groups_of(const Matrix& matrix) { return (matrix.in + GROUP - 1) / GROUP; }

// Shifts of an output.
int64_t shifts_of(const Matrix& matrix) {
    return matrix.shifts ? (groups_of(matrix) + matrix.shift_groups - 1) / matrix.shift_groups : 0;
}

// The product of words of four bytes, unsigned weights and signed activations, as exact integers. Where an instruction
// adds up two products in 16 bits, a group fits: 8 words of 2 products, from each of which OFFSET times the row's number
// has been taken away, so that none is greater than 8 * 127.
struct Bytes {
#if QUIRE_DOT
    using Sum = i32x16;
    static Sum dot(Sum sum, u32x16 weights, uint32_t x) { return quire::dot(sum, weights, u32x16{} + x); }
    static Sum total(Sum sum) { return sum; }
#else
    using Sum = i16x32;
    static Sum dot(Sum sum, u32x16 weights, uint32_t x) {
        const u32x16 bytes = u32x16{} + x;
#if defined(__AVX512BW__)
        return settled(sum + (Sum)_mm512_maddubs_epi16((__m512i)weights, (__m512i)bytes));
#elif defined(__AVX2__)
        return settled(sum + by_part([](auto one, auto other) { return (Register<int16_t, 2>)_mm256_maddubs_epi16((__m256i)one, (__m256i)other); },
                                     weights, bytes));
#else
        sum += (Sum)(weights & 0x00FF00FF) * ((Sum)(bytes << 8) >> 8);
        return sum + (Sum)(weights >> 8 & 0x00FF00FF) * ((Sum)bytes >> 8);
#endif
    }
    static i32x16 total(Sum sum) {
#if defined(__AVX512BW__)
        return (i32x16)_mm512_madd_epi16((__m512i)sum, _mm512_set1_epi16(1));
#elif defined(__AVX2__)
        return by_part([](auto part) { return (Register<int32_t>)_mm256_madd_epi16((__m256i)part, _mm256_set1_epi16(1)); }, sum);
#else
        return ((i32x16)((u32x16)sum << 16) >> 16) + ((i32x16)sum >> 16);
#endif
    }
#endif
    // The first sums of a group, from its excess.
    static Sum start(uint32_t excess) { return Sum{} - (Sum)(u32x16{} + excess); }

    // The excess of a group's activations, as a word of sums.
    static uint32_t excess(const int8_t* numbers) {
        const uint32_t eights = OFFSET * 0x01010101u;
        Sum sum = {};
        for (int word = 0; word < BYTE_WORDS; ++word) sum = dot(sum, u32x16{} + eights, load_bits<uint32_t>(numbers + 4 * word));
        return ((u32x16)sum)[0];
    }
};

// Multiplication of panels of groups. See `Words`.
struct Groups {
    using Sum = f32x16;
    static constexpr int ROWS = PART == 16 ? TILE_ROWS / 2 : TILE_ROWS;  // half of AVX-512's registers hold sums of a group
    static constexpr int64_t SIZE = LANES + WORDS * COLUMNS;

    // See `Words::multiply`.
    template <int SHARE, int COUNT, int FIRST, int LAST>
    static void multiply(const uint32_t* x, int64_t stride, const uint32_t* panel, int64_t groups,
                         const uint32_t* later, Tile<Sum>& tile) {
        Sum totals[COUNT][2] = {};
        const uint32_t* excesses = x + groups * BYTE_WORDS;
        const float* row_scales = reinterpret_cast<const float*>(excesses + groups);
        for (int64_t group = 0; group < groups; ++group, ++excesses, ++row_scales, x += BYTE_WORDS, panel += SIZE) {
            if (COUNT >= COMPUTING) fetch<SHARE, FIRST, LAST>(panel, later + group * SHARE);
            typename Bytes::Sum sums[COUNT][2];
#pragma GCC unroll 16
            for (int row = 0; row < COUNT; ++row) sums[row][0] = sums[row][1] = Bytes::start(excesses[row * stride]);
            for (int word = 0; word < WORDS; ++word) {
                const uint32_t* from = panel + LANES + word * COLUMNS;
#pragma GCC unroll 2
                for (int nibble = 0; nibble < 2; ++nibble) {
                    u32x16 weights[2];
#pragma GCC unroll 2
                    for (int half = FIRST; half < LAST; ++half)
                        weights[half] = load_bits<u32x16>(from + half * LANES) >> (4 * nibble) & 0x0F0F0F0F;
#pragma GCC unroll 16
                    for (int row = 0; row < COUNT; ++row) {
                        const uint32_t numbers = x[row * stride + 2 * word + nibble];
#pragma GCC unroll 2
                        for (int half = FIRST; half < LAST; ++half)
                            sums[row][half] = Bytes::dot(sums[row][half], weights[half], numbers);
                    }
                }
            }
#pragma GCC unroll 2
            for (int half = FIRST; half < LAST; ++half) {
                const f32x16 scales = from_halves(load_bits<u16x16>(panel + half * LANES / 2));
#pragma GCC unroll 16
                for (int row = 0; row < COUNT; ++row)
                    totals[row][half] += convert<float>(Bytes::total(sums[row][half])) * (scales * row_scales[row * stride]);
            }
        }
        for (int row = 0; row < COUNT; ++row)
            for (int half = FIRST; half < LAST; ++half) tile.sums[row][half] = totals[row][half];
    }

    // Prefetch the group AHEAD, each half its lines, and SHARE words from `later` on.
    template <int SHARE, int FIRST, int LAST>
    static void fetch(const uint32_t* panel, const uint32_t* later) {
        constexpr int STEP = LAST - FIRST == 2 ? LANES : COLUMNS;
#pragma GCC unroll 16
        for (int64_t at = FIRST * LANES; at < SIZE; at += STEP) __builtin_prefetch(panel + AHEAD + at);
#pragma GCC unroll 16
        for (int64_t at = 0; at < SHARE; at += LANES) __builtin_prefetch(later + at);
    }
};

#if QUIRE_MATRIX_UNITS
// Unpack `count` groups of a panel from `first` on.
void unpack(const Matrix& matrix, int64_t panel, int64_t first, int64_t count, UnitPart& part) {
    const uint32_t* from = matrix.panels + (panel * groups_of(matrix) + first) * Groups::SIZE;
    uint32_t* to = part.words;
    for (int64_t group = 0; group < count; ++group, from += Groups::SIZE) {
        for (int half = 0; half < 2; ++half)
            store(part.scales + group * COLUMNS + half * LANES, from_halves(load_bits<u16x16>(from + half * LANES / 2)));
        for (int word = 0; word < WORDS; ++word, to += 2 * COLUMNS)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                const auto nibbles = load_bits<u32x16>(from + LANES + word * COLUMNS + half * LANES);
                __builtin_prefetch(from + AHEAD + word * COLUMNS + half * LANES);
                store_bits(to + half * LANES, sum_of_bytes(nibbles & 0x0F0F0F0F, -OFFSET));
                store_bits(to + COLUMNS + half * LANES, sum_of_bytes(nibbles >> 4 & 0x0F0F0F0F, -OFFSET));
            }
    }
}
#endif

// Words of a row of activations before its scales. After these it has the sum of the numbers of each shift, as float32.
int64_t row_scales_at(const Matrix& matrix) { return groups_of(matrix) * (BYTE_WORDS + 1); }

Rows quantize_groups(const Matrix& matrix, const void* x, int64_t count) {
    const int64_t groups = groups_of(matrix), last = matrix.in % GROUP, shifts = shifts_of(matrix);
    const int64_t place = row_scales_at(matrix), words = place + groups + shifts;
    return quantize_in_groups(matrix, x, count, GROUP, words, place, [&](uint32_t* row) {
        auto* bytes = reinterpret_cast<int8_t*>(row);
        if (last && last <= LANES) std::memset(bytes + groups * GROUP - LANES, 0, LANES);
        auto *scales = reinterpret_cast<float*>(row) + place, *sums = scales + groups;
        std::fill_n(sums, shifts, 0.0f);
        for (int64_t group = 0; group < groups; ++group, bytes += GROUP) {
            row[groups * BYTE_WORDS + group] = Bytes::excess(bytes);
            if (shifts) sums[group / matrix.shift_groups] += scales[group] * float(sum_of(bytes, GROUP));
        }
    });
}

// Position of a number's lowest bit in its word.
int place(int64_t number) { return number % 4 * 8 + number % 8 / 4 * 4; }

// Add what a panel's shifts mean to the sums of `count` rows, the first of which is `x`.
void add_shifts(const Matrix& matrix, int64_t panel, const uint32_t* x, int64_t stride, int count, Tile<f32x16>& tile) {
    const int64_t shifts = shifts_of(matrix);
    const auto* sums = reinterpret_cast<const float*>(x) + row_scales_at(matrix) + groups_of(matrix);
    const uint16_t* from = matrix.shifts + panel * shifts * COLUMNS;
    for (int64_t number = 0; number < shifts; ++number, from += COLUMNS) {
        const f32x16 left = from_halves(load_bits<u16x16>(from)), right = from_halves(load_bits<u16x16>(from + LANES));
        for (int row = 0; row < count; ++row) {
            tile.sums[row][0] += left * sums[row * stride + number];
            tile.sums[row][1] += right * sums[row * stride + number];
        }
    }
}

// Quantize a group of weights, `count` and then zeros, less `shift`. Writes its words, COLUMNS apart; returns its scale
// as float16: `given`, if it is not null.
template <class Number>
uint16_t pack(const Number* from, int64_t count, const uint16_t* given, float shift, uint32_t* to) {
    float numbers[GROUP] = {}, extreme = 0;
    for (int64_t at = 0; at < count && at < GROUP; ++at) {
        numbers[at] = to_float(from[at]) - shift;
        const float size = std::abs(numbers[at]), largest = std::abs(extreme);
        if (size > largest || (size == largest && extreme < 0) || std::isnan(size)) extreme = numbers[at];
    }
    const uint16_t half = given ? *given : to_half(extreme / -OFFSET);
    const float scale = from_half(half);
    const f32x16 lowest = splat(-OFFSET), highest = splat(OFFSET - 1);
    for (int number = 0; number < GROUP; number += LANES) {
        f32x16 multiples = scale == 0 ? f32x16{} : load(numbers + number) / scale;
        multiples = select(multiples < lowest, lowest, select(multiples > highest, highest, multiples));
        const u32x16 nibbles = ((u32x16)(multiples + ROUNDS) + OFFSET) & 15;
        uint32_t words[LANES / 8] = {};
        for (int lane = 0; lane < LANES; ++lane) words[lane / 8] |= nibbles[lane] << place(lane);
        for (int word = 0; word < LANES / 8; ++word) to[(number / 8 + word) * COLUMNS] = words[word];
    }
    return half;
}

}  // namespace
}  // namespace quire

// Quantize a matrix: write its panels. `scales`: null, or of each row's groups, for a matrix that was quantized before.
// `shifts`: null, or of each row, which are written to `kept`, the matrix's own.
EXPORTED void quire_int4_pack(const quire::Matrix* matrix, const void* weight, const uint16_t* scales, const float* shifts,
                              uint32_t* panels, uint16_t* kept) {
    using namespace quire;
    const int64_t groups = groups_of(*matrix), in = matrix->in, count = shifts_of(*matrix);
    parallel_for(matrix->count(), [&](int64_t panel, int) {
        for (int column = 0; column < COLUMNS; ++column) {
            const int64_t row = matrix->source(panel, column);
            if (row < 0) continue;  // scales of zero
            for (int64_t number = 0; number < count; ++number)
                kept[(panel * count + number) * COLUMNS + column] = to_half(shifts[row * count + number]);
            for (int64_t group = 0; group < groups; ++group) {
                uint32_t* to = panels + (panel * groups + group) * Groups::SIZE;
                const int64_t at = group * GROUP, from = row * in + at;
                const uint16_t* given = scales ? scales + row * groups + group : nullptr;
                const float shift = count ? shifts[row * count + group / matrix->shift_groups] : 0;
                reinterpret_cast<uint16_t*>(to)[column] =
                    matrix->type == Type::float32
                        ? pack(static_cast<const float*>(weight) + from, in - at, given, shift, to + LANES + column)
                        : pack(static_cast<const bf16*>(weight) + from, in - at, given, shift, to + LANES + column);
            }
        }
    });
}

// As `quire_quantized_rows`.
EXPORTED void quire_int4_rows(const quire::Matrix* matrix, const int64_t* ids, int64_t count, void* out) {
    using namespace quire;
    const int64_t groups = groups_of(*matrix), shifts = shifts_of(*matrix);
    parallel_for(count, [&](int64_t number, int) {
        const int64_t row = ids[number], column = row % COLUMNS;
        const uint16_t* kept = matrix->shifts + row / COLUMNS * shifts * COLUMNS + column;
        const uint32_t* from = matrix->panels + row / COLUMNS * groups * Groups::SIZE;
        for (int64_t at = 0; at < matrix->in; ++at) {
            const uint32_t* group = from + at / GROUP * Groups::SIZE;
            const uint32_t word = group[LANES + at % GROUP / 8 * COLUMNS + column];
            const float scale = from_half(reinterpret_cast<const uint16_t*>(group)[column]);
            const float shift = shifts ? from_half(kept[at / GROUP / matrix->shift_groups * COLUMNS]) : 0;
            matrix->write(out, number * matrix->in + at, (int(word >> place(at) & 15) - OFFSET) * scale + shift);
        }
    });
}

// As `quire_linear`.
EXPORTED void quire_int4(const quire::Matrix* matrix, const void* x, int64_t rows, void* out, int add) {
    using namespace quire;
    const Rows source = quantize_groups(*matrix, x, rows);
    const Output output = matrix->output(out, add);
    const auto finish_sums = [&](int64_t panel, int64_t row, int count, Tile<f32x16>& tile) {
        if (matrix->shifts) add_shifts(*matrix, panel, source.words + row * source.stride, source.stride, count, tile);
        finish_tile(*matrix, output, panel, row, count, tile);
    };
#if QUIRE_MATRIX_UNITS
    if (units_gain(rows, GROUP)) {
        const auto unpacks = [&](int64_t panel, int64_t first, int64_t count, UnitPart& part) { unpack(*matrix, panel, first, count, part); };
        return for_each_tile_of_groups(*matrix, GROUP, source, {row_scales_at(*matrix), -1}, unpacks, finish_sums);
    }
#endif
    for_each_tile<Groups>(source, matrix->panels, matrix->count(), groups_of(*matrix), finish_sums);
}
PLAYABLE(quire_int4)
