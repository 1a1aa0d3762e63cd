// Products with codes whose values are no whole numbers: fp8, and places in a table.
//
// A panel has the codes of 32 outputs for one input after the other, in bytes. Codes of 4 bits share a byte with those of
// the next input, which are its upper half:
//
//     input 0: output 0, 1, .. 31 │ input 1: output 0, 1, .. 31
//
// Neither weights nor activations are rounded to fewer bits: for few rows codes become float32 in registers. For more, a
// part of a panel becomes float32 in the L1 cache, is multiplied as a panel of float32, and all tiles of a task share it.
// The sums are the same, bit by bit.
#pragma once

#include <bit>

#include "codes.h"
#include "unit_products.h"

namespace quire {
namespace {

// Inputs of a part: with 32 columns of float32 they fill a quarter of an L1 cache.
constexpr int64_t PART_INPUTS = 64;
constexpr int64_t TASK_TILES = TASK_ROWS / TILE_ROWS;

// The values of 16 codes in the bytes from `from` on, for each of INPUTS inputs. They are to be multiplied with FACTOR.
// e4m3 has the bits of a float16 with fewer of them, whose exponent means a number 2^8 times as small.
struct Fp8 {
    static constexpr int INPUTS = 1;
    static constexpr float FACTOR = 0x1p8f;
    explicit Fp8(const Codes&) {}
    void read(const uint8_t* from, f32x16* values) const {
        values[0] = from_halves((to_halves(load_bits<i8x16>(from)) << 7) & 0xBFFF);  // without the sign's second copy
    }
};

struct Table {
    static constexpr int INPUTS = 2;
    static constexpr float FACTOR = 1;
    const float* table;
    explicit Table(const Codes& codes) : table(codes.table) {}
    void read(const uint8_t* from, f32x16* values) const {
        const auto bytes = (u32x16)to_words(load_bits<i8x16>(from));
        values[0] = at(bytes & 15);
        values[1] = at(bytes >> 4 & 15);
    }

private:
    f32x16 at(u32x16 places) const {
#if defined(__AVX512F__)
        return (f32x16)_mm512_permutexvar_ps((__m512i)places, _mm512_loadu_ps(table));
#elif defined(__AVX2__)
        const __m256 first = _mm256_loadu_ps(table), second = _mm256_loadu_ps(table + 8);
        return by_part(
            [&](auto part) {
                const auto one = _mm256_permutevar8x32_ps(first, (__m256i)part);
                const auto other = _mm256_permutevar8x32_ps(second, (__m256i)part);
                return (Register<float>)_mm256_blendv_ps(one, other, (__m256)(part << 28));  // by their fourth bit
            },
            places);
#else
        uint32_t numbers[LANES];
        float values[LANES];
        store_bits(numbers, places);
        for (int lane = 0; lane < LANES; ++lane) values[lane] = table[numbers[lane]];
        return load(values);
#endif
    }
};

// Dequantize inputs `begin` to `end` - 1 of a panel. `begin` is even. Calls `then(input, weights)` with both halves of its
// weights.
template <class Values, class Then>
inline void dequantize(const Matrix& matrix, const Values& values, int64_t panel, int64_t begin, int64_t end, const Then& then) {
    const uint8_t* from = reinterpret_cast<const uint8_t*>(matrix.panels) + (panel * ((matrix.in + Values::INPUTS - 1) / Values::INPUTS) + begin / Values::INPUTS) * COLUMNS;
    const int64_t size = matrix.codes->size;
    GroupReader groups(matrix, panel, begin / size, Values::FACTOR);
    for (int64_t at = begin; at < end;) {
        const int64_t stop = std::min(end, at - at % size + size);
        const Group found = groups.next();
        const auto give = [&](int count) {
            __builtin_prefetch(from + sizeof(uint32_t) * AHEAD);
            f32x16 numbers[2][Values::INPUTS];
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) values.read(from + half * LANES, numbers[half]);
#pragma GCC unroll 2
            for (int input = 0; input < count; ++input) {
                f32x16 weights[2];
#pragma GCC unroll 2
                for (int half = 0; half < 2; ++half)
                    weights[half] = numbers[half][input] * found.scales[half] + found.shifts[half];
                then(at + input, weights);
            }
            from += COLUMNS;
        };
        for (; at + Values::INPUTS <= stop; at += Values::INPUTS) give(Values::INPUTS);
        if (at < stop) give(1), ++at;  // the last input of a row
    }
}

// The products of a panel with COUNT rows, whose weights stay in registers.
template <class Values, int COUNT>
void multiply_few(const Matrix& matrix, const Values& values, int64_t panel, const Rows& x, Tile<f32x16>& tile) {
    f32x16 sums[COUNT][2] = {};
    dequantize(matrix, values, panel, 0, matrix.in, [&](int64_t input, const f32x16* weights) {
#pragma GCC unroll 16
        for (int row = 0; row < COUNT; ++row) {
            const auto number = (f32x16)(u32x16{} + x.words[row * x.stride + input]);
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) sums[row][half] = sums[row][half] + weights[half] * number;
        }
    });
    for (int row = 0; row < COUNT; ++row)
        for (int half = 0; half < 2; ++half) tile.sums[row][half] = sums[row][half];
}

using Part = void (*)(const uint32_t*, int64_t, const uint32_t*, int64_t, bool, Tile<f32x16>&);
template <class Values>
using Few = void (*)(const Matrix&, const Values&, int64_t, const Rows&, Tile<f32x16>&);

template <int... BEFORE>
constexpr std::array<Part, TILE_ROWS> parts_of(std::integer_sequence<int, BEFORE...>) {
    return {Words<Float32>::multiply_part<BEFORE + 1>...};
}
template <class Values, int... BEFORE>
constexpr std::array<Few<Values>, BOTH_HALVES> few_of(std::integer_sequence<int, BEFORE...>) {
    return {multiply_few<Values, BEFORE + 1>...};
}

// The products of 1, 2, .. rows with a part of a panel, and with a whole panel of codes.
constexpr auto MULTIPLY_PART = parts_of(std::make_integer_sequence<int, TILE_ROWS>());
template <class Values>
constexpr auto MULTIPLY_FEW = few_of<Values>(std::make_integer_sequence<int, BOTH_HALVES>());

// Dequantize inputs of a panel to COLUMNS numbers for each.
template <class Values>
void write_part(const Matrix& matrix, const Values& values, int64_t panel, int64_t begin, int64_t end, float* to) {
    dequantize(matrix, values, panel, begin, end, [&](int64_t input, const f32x16* weights) {
        store(to + (input - begin) * COLUMNS, weights[0]);
        store(to + (input - begin) * COLUMNS + LANES, weights[1]);
    });
}

template <class Values>
void multiply_floats(const Matrix& matrix, const Values& values, const Rows& x, const Output& output) {
    const int64_t tiles = (x.count + TILE_ROWS - 1) / TILE_ROWS, parts = (tiles + TASK_TILES - 1) / TASK_TILES;
    parallel_for(parts * matrix.count(), [&](int64_t task, int) {
        const int64_t panel = task / parts, part = task % parts;
        const int64_t first = part * tiles / parts, last = (part + 1) * tiles / parts;
        const auto row_of = [&](int64_t tile) { return tile * x.count / tiles; };
        Tile<f32x16> sums[TASK_TILES];
        if (x.count <= BOTH_HALVES) {
            MULTIPLY_FEW<Values>[x.count - 1](matrix, values, panel, x, sums[0]);
        } else {
            alignas(64) float weights[PART_INPUTS * COLUMNS];
            for (int64_t begin = 0; begin < matrix.in; begin += PART_INPUTS) {
                const int64_t end = std::min(begin + PART_INPUTS, matrix.in);
                write_part(matrix, values, panel, begin, end, weights);
                for (int64_t tile = first; tile < last; ++tile) {
                    const int64_t row = row_of(tile);
                    MULTIPLY_PART[row_of(tile + 1) - row - 1](x.words + row * x.stride + begin, x.stride,
                                                              reinterpret_cast<const uint32_t*>(weights), end - begin,
                                                              begin == 0, sums[tile - first]);
                }
            }
        }
        for (int64_t tile = first; tile < last; ++tile) {
            const int64_t row = row_of(tile);
            const int count = int(row_of(tile + 1) - row);
            finish_tile(matrix, output, panel, row, count, sums[tile - first]);
        }
    });
}

#if QUIRE_MATRIX_UNITS

// Inputs of a part that becomes bfloat16, which holds any fp8: a part of 16 KiB.
constexpr int64_t UNIT_INPUTS = 256;
constexpr int64_t STEP_INPUTS = 2 * STEP_WORDS;

// Whether matrix units multiply codes of fp8: the sums of a group are multiplied by its scale, whole steps of inputs or all.
inline bool units_fit(const Matrix& matrix) {
    const Codes& codes = *matrix.codes;
    const bool whole = codes.size % STEP_INPUTS == 0 && UNIT_INPUTS % codes.size == 0;
    return matrix.type == Type::bfloat16 && !codes.shifts && (whole || codes.groups(matrix.in) == 1);
}

// Inputs `begin` to `end` - 1 of a panel as words of bfloat16, divided by FACTOR; what comes after the last input is zero.
inline void to_bfloat16(const Matrix& matrix, int64_t panel, int64_t begin, int64_t end, uint32_t* to) {
    // A number has the code's sign, exponent and fraction. Codes without exponent are whole multiples of the smallest one.
    alignas(64) static constexpr auto SMALL = [] {
        std::array<uint16_t, 2 * LANES> numbers{};
        for (int number = 0; number < 8; ++number)
            numbers[number] = uint16_t(std::bit_cast<uint32_t>(number * 0x1p-9f / Fp8::FACTOR) >> 16);
        return numbers;
    }();
    alignas(64) static constexpr auto PLACES = [] {  // both bytes of 16 bits are one code: an input's, and then the next one's
        std::array<std::array<uint8_t, 4 * LANES>, 2> places{};
        for (int half = 0; half < 2; ++half)
            for (int at = 0; at < 4 * LANES; ++at) places[half][at] = uint8_t(at / 2 % 2 * COLUMNS + half * LANES + at / 4);
        return places;
    }();
    const __m512i table = _mm512_load_si512(SMALL.data()), sign = _mm512_set1_epi16(int16_t(0x8000));
    const __m512i exponent = _mm512_set1_epi16(0x7800), exponents = _mm512_set1_epi8(0x78);
    const __m512i bits = _mm512_set1_epi16(0x07F0), bias = _mm512_set1_epi16((127 - 7 - 8) << 7);
    const __m512i left = _mm512_load_si512(PLACES[0].data()), right = _mm512_load_si512(PLACES[1].data());
    const auto write_half = [&](__m512i codes, __m512i places, bool small, uint32_t* to) __attribute__((always_inline)) {
        const __m512i twice = _mm512_permutexvar_epi8(places, codes);
        __m512i number = _mm512_ternarylogic_epi64(_mm512_srli_epi16(twice, 4), bits, bias, 0xEA);  // (first & second) | third
        if (small) number = _mm512_mask_permutexvar_epi16(number, _mm512_testn_epi16_mask(twice, exponent), twice, table);
        _mm512_storeu_si512(to, _mm512_ternarylogic_epi64(twice, sign, number, 0xEA));
    };
    const auto write = [&](__m512i codes, uint32_t* to) __attribute__((always_inline)) {
        const auto both = [&](bool small) __attribute__((always_inline)) {
            write_half(codes, left, small, to);
            write_half(codes, right, small, to + LANES);
        };
        // Few codes have no exponent: most often none of these.
        __builtin_expect(_mm512_testn_epi8_mask(codes, exponents) == 0, 1) ? both(false) : both(true);
    };
    const uint8_t* from = reinterpret_cast<const uint8_t*>(matrix.panels) + (panel * matrix.in + begin) * COLUMNS;
    uint32_t* const stop = to + (end - begin) / 2 * COLUMNS;
    for (const uint32_t* last = to + (std::min(end, matrix.in) - begin) / 2 * COLUMNS; to < last; to += COLUMNS, from += 2 * COLUMNS) {
        __builtin_prefetch(from + sizeof(uint32_t) * AHEAD);
        const __m512i codes = _mm512_loadu_si512(from);
        write(codes, to);
    }
    if (to < stop && matrix.in % 2) {
        const __m512i codes = _mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
        write(codes, to);
        to += COLUMNS;
    }
    std::fill(to, stop, 0);
}

// Add sums of a group times its scales to `total`, or to 0 if it `begins` with them.
inline void add_scaled(const Tile<f32x16>& sums, int rows, const Group& group, bool begins, Tile<f32x16>& total) {
    for (int row = 0; row < rows; ++row)
#pragma GCC unroll 2
        for (int half = 0; half < 2; ++half) {
            const f32x16 before = begins ? f32x16{} : total.sums[row][half];
            total.sums[row][half] = before + sums.sums[row][half] * group.scales[half];
        }
}

// As `multiply_floats`: any number of rows, so that a row has the same bits beside any others.
inline void multiply_by_units(const Matrix& matrix, const UnitRows& x, const Output& output) {
    constexpr int64_t MOST_TILES = 8;
    const int64_t tiles = x.tiles(), parts = (tiles + MOST_TILES - 1) / MOST_TILES, count = matrix.count();
    const bool one_group = matrix.codes->groups(matrix.in) == 1;
    const int64_t all = (matrix.in + STEP_INPUTS - 1) / STEP_INPUTS * STEP_INPUTS;
    const int64_t each = (one_group ? UNIT_INPUTS : matrix.codes->size) / STEP_INPUTS;
    parallel_for<MatrixUnits>(parts * count, [&](int64_t task, int, MatrixUnits& units) {
        const int64_t panel = task % count, first = task / count * tiles / parts, last = (task / count + 1) * tiles / parts;
        Tile<f32x16> totals[MOST_TILES], found;
        alignas(64) uint32_t weights[UNIT_INPUTS / 2 * COLUMNS];
        Group scales[UNIT_INPUTS / STEP_INPUTS];
        GroupReader groups(matrix, panel, 0, Fp8::FACTOR);
        if (one_group) scales[0] = groups.next();
        for (int64_t begin = 0; begin < all; begin += UNIT_INPUTS) {
            const int64_t end = std::min(begin + UNIT_INPUTS, all), steps = (end - begin) / STEP_INPUTS;
            for (int64_t step = 0; !one_group && step < steps; step += each) scales[step / each] = groups.next();
            for (int64_t tile = first; tile < last; ++tile) {
                const int rows = x.rows_of(tile);
                units.shape(shapes_of(rows));
                const uint32_t* numbers = x.words + tile * x.tile + begin / STEP_INPUTS * x.step;
                Tile<f32x16>& total = totals[tile - first];
                const auto compute = [&](auto both) {
                    const UnitTile<UnitBFloat16, decltype(both)::value> product(x, rows);
                    const auto multiply = [&](int64_t step, int64_t count) {  // steps of a group
                        if (step % each == 0) one_group && begin ? product.load(total) : product.clear();
                        const uint32_t* now = weights + step * STEP;
                        product.template multiply<0>(numbers + step * x.step, now, count, now);
                        if ((step + count) % each && step + count < steps) return;
                        product.store(one_group ? total : found);
                        if (!one_group) add_scaled(found, rows, scales[step / each], begin + step - step % each == 0, total);
                    };
                    if (tile > first) {
                        for (int64_t step = 0; step < steps; step += each) multiply(step, std::min(each, steps - step));
                        return;
                    }
                    // A step becomes bfloat16 while the units multiply the one before.
                    for (int64_t step = 0; step <= steps; ++step) {
                        const int64_t at = begin + step * STEP_INPUTS;
                        if (step < steps) to_bfloat16(matrix, panel, at, at + STEP_INPUTS, weights + step * STEP);
                        if (step) multiply(step - 1, 1);
                    }
                };
                rows > REGISTER_ROWS ? compute(std::true_type()) : compute(std::false_type());
            }
        }
        for (int64_t tile = first; tile < last; ++tile) {
            const int rows = x.rows_of(tile);
            if (one_group) add_scaled(totals[tile - first], rows, scales[0], true, totals[tile - first]);
            finish_tile(matrix, output, panel, tile * MOST_ROWS, rows, totals[tile - first]);
        }
    });
}
#endif

// A dequantized row: `write(input, weight)` for each.
template <class Values, class Write>
void read_column(const Matrix& matrix, const Values& values, int64_t row, const Write& write) {
    alignas(64) float weights[PART_INPUTS * COLUMNS];
    for (int64_t begin = 0; begin < matrix.in; begin += PART_INPUTS) {
        const int64_t end = std::min(begin + PART_INPUTS, matrix.in);
        write_part(matrix, values, row / COLUMNS, begin, end, weights);
        for (int64_t at = begin; at < end; ++at) write(at, weights[(at - begin) * COLUMNS + row % COLUMNS]);
    }
}

}  // namespace
}  // namespace quire
