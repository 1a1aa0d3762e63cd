// Products of fp8 with activations of bfloat16, which holds each of its numbers: codes become bfloat16, 32 inputs or more at
// a time, and are multiplied in pairs. Layout: coded_floats.h.
#pragma once

#include "coded_floats.h"
#include "unit_products.h"

#if defined(__AVX512BF16__)

#include <bit>

namespace quire {
namespace {

// Inputs of a part of a panel that becomes bfloat16: a part of 16 KiB.
constexpr int64_t PAIRED_INPUTS = 256;

// The codes of two inputs of a panel as words of bfloat16, divided by Fp8::FACTOR, half for half.
class Fp8Words {
public:
    // `left` and `right`: of 64 bytes, the codes of an input and then those of the next one.
    __attribute__((always_inline)) void read(__m512i codes, __m512i& left, __m512i& right) const {
        // Few codes have no exponent: most often none of these.
        if (__builtin_expect(_mm512_testn_epi8_mask(codes, exponents) == 0, 1)) {
            left = half<false>(codes, places[0]);
            right = half<false>(codes, places[1]);
        } else {
            left = half<true>(codes, places[0]);
            right = half<true>(codes, places[1]);
        }
    }

private:
    // A number has the code's sign, exponent and fraction. Codes without exponent are whole multiples of the smallest one.
    template <bool SMALL>
    __attribute__((always_inline)) __m512i half(__m512i codes, __m512i from) const {
        const __m512i twice = _mm512_permutexvar_epi8(from, codes);
        __m512i number = _mm512_ternarylogic_epi64(_mm512_srli_epi16(twice, 4), bits, bias, 0xEA);  // (first & second) | third
        if (SMALL) number = _mm512_mask_permutexvar_epi16(number, _mm512_testn_epi16_mask(twice, exponent), twice, table);
        return _mm512_ternarylogic_epi64(twice, sign, number, 0xEA);
    }

    alignas(64) static constexpr auto NUMBERS = [] {
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

    const __m512i places[2] = {_mm512_load_si512(PLACES[0].data()), _mm512_load_si512(PLACES[1].data())};
    const __m512i table = _mm512_load_si512(NUMBERS.data()), sign = _mm512_set1_epi16(int16_t(0x8000));
    const __m512i exponent = _mm512_set1_epi16(0x7800), exponents = _mm512_set1_epi8(0x78);
    const __m512i bits = _mm512_set1_epi16(0x07F0), bias = _mm512_set1_epi16((127 - 7 - 8) << 7);
};

// Calls `then(left, right)` for each two of inputs `begin` to `end` - 1 of a panel. What comes after the last input of a row
// is zero.
template <class Then>
inline void to_bfloat16(const Matrix& matrix, int64_t panel, int64_t begin, int64_t end, const Then& then) {
    const Fp8Words words;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(matrix.panels) + (panel * matrix.in + begin) * COLUMNS;
    const auto give = [&](__m512i codes) __attribute__((always_inline)) {
        __m512i left, right;
        words.read(codes, left, right);
        then(left, right);
    };
    end = std::min(end, matrix.in);
    for (const uint8_t* last = from + (end - begin) / 2 * 2 * COLUMNS; from < last; from += 2 * COLUMNS) {
        __builtin_prefetch(from + sizeof(uint32_t) * AHEAD);
        give(_mm512_loadu_si512(from));
    }
    if ((end - begin) % 2) give(_mm512_zextsi256_si512(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))));
}

// The same, written to `to`; words to `end` that are no inputs of a row are zero.
inline void write_bfloat16(const Matrix& matrix, int64_t panel, int64_t begin, int64_t end, uint32_t* to) {
    uint32_t* const stop = to + (end - begin) / 2 * COLUMNS;
    to_bfloat16(matrix, panel, begin, end, [&](__m512i left, __m512i right) __attribute__((always_inline)) {
        _mm512_storeu_si512(to, left);
        _mm512_storeu_si512(to + LANES, right);
        to += COLUMNS;
    });
    if (to < stop) std::fill(to, stop, 0);
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

#if QUIRE_PAIRS

inline bool fits_pairs(const Matrix& matrix) { return pairs && matrix.type == Type::bfloat16 && !matrix.codes->shifts; }

// Rows of a tile whose codes stay in registers.
constexpr int PAIRED_ROWS = 8;

// The sums of COUNT rows with inputs `begin` to `end` - 1 of a panel.
template <int COUNT>
void multiply_few_pairs(const Matrix& matrix, int64_t panel, int64_t begin, int64_t end, const Rows& x, Tile<f32x16>& tile) {
    f32x16 sums[COUNT][2] = {};
    const uint32_t* numbers = x.words + begin / 2;
    to_bfloat16(matrix, panel, begin, end, [&](__m512i left, __m512i right) __attribute__((always_inline)) {
#pragma GCC unroll 16
        for (int row = 0; row < COUNT; ++row) {
            const u32x16 number = u32x16{} + numbers[row * x.stride];
            sums[row][0] = BFloat16Pairs::dot(sums[row][0], (u32x16)left, number);
            sums[row][1] = BFloat16Pairs::dot(sums[row][1], (u32x16)right, number);
        }
        ++numbers;
    });
    for (int row = 0; row < COUNT; ++row)
        for (int half = 0; half < 2; ++half) tile.sums[row][half] = sums[row][half];
}

using FewPairs = void (*)(const Matrix&, int64_t, int64_t, int64_t, const Rows&, Tile<f32x16>&);
template <int... BEFORE>
constexpr std::array<FewPairs, PAIRED_ROWS> few_pairs_of(std::integer_sequence<int, BEFORE...>) {
    return {multiply_few_pairs<BEFORE + 1>...};
}
constexpr auto MULTIPLY_FEW_PAIRS = few_pairs_of(std::make_integer_sequence<int, PAIRED_ROWS>());
constexpr auto MULTIPLY_PAIRS = parts_of<BFloat16Pairs>(std::make_integer_sequence<int, TILE_ROWS>());

// As `multiply_floats`. The sums of a group are multiplied by its scale.
inline void multiply_pairs(const Matrix& matrix, const Rows& x, const Output& output) {
    const int64_t tiles = (x.count + TILE_ROWS - 1) / TILE_ROWS, parts = (tiles + TASK_TILES - 1) / TASK_TILES;
    const int64_t in = matrix.in, size = std::min(matrix.codes->size, in);
    parallel_for(parts * matrix.count(), [&](int64_t task, int) {
        const int64_t panel = task / parts, part = task % parts;
        const int64_t first = part * tiles / parts, last = (part + 1) * tiles / parts;
        const auto row_of = [&](int64_t tile) { return tile * x.count / tiles; };
        Tile<f32x16> sums[TASK_TILES], totals[TASK_TILES];
        alignas(64) uint32_t weights[PAIRED_INPUTS / 2 * COLUMNS];
        GroupReader groups(matrix, panel, 0, Fp8::FACTOR);
        for (int64_t group = 0; group < in; group += size) {
            const int64_t stop = std::min(group + size, in);
            if (x.count <= PAIRED_ROWS) {
                MULTIPLY_FEW_PAIRS[x.count - 1](matrix, panel, group, stop, x, sums[0]);
            } else {
                for (int64_t begin = group; begin < stop; begin += PAIRED_INPUTS) {
                    const int64_t words = (std::min(begin + PAIRED_INPUTS, stop) - begin + 1) / 2;
                    write_bfloat16(matrix, panel, begin, begin + 2 * words, weights);
                    for (int64_t tile = first; tile < last; ++tile) {
                        const int64_t row = row_of(tile);
                        MULTIPLY_PAIRS[row_of(tile + 1) - row - 1](x.words + row * x.stride + begin / 2, x.stride, weights,
                                                                   words, begin == group, sums[tile - first]);
                    }
                }
            }
            const Group scales = groups.next();
            for (int64_t tile = first; tile < last; ++tile)
                add_scaled(sums[tile - first], int(row_of(tile + 1) - row_of(tile)), scales, group == 0, totals[tile - first]);
        }
        for (int64_t tile = first; tile < last; ++tile)
            finish_tile(matrix, output, panel, row_of(tile), int(row_of(tile + 1) - row_of(tile)), totals[tile - first]);
    });
}

#endif
#if QUIRE_MATRIX_UNITS

constexpr int64_t STEP_INPUTS = 2 * STEP_WORDS;

// Whether matrix units multiply codes of fp8: the sums of a group are multiplied by its scale, whole steps of inputs or all.
inline bool fits_units(const Matrix& matrix) {
    const Codes& codes = *matrix.codes;
    const bool whole = codes.size % STEP_INPUTS == 0 && PAIRED_INPUTS % codes.size == 0;
    return matrix.type == Type::bfloat16 && !codes.shifts && (whole || codes.groups(matrix.in) == 1);
}

// As `multiply_floats`: any number of rows, so that a row has the same bits beside any others.
inline void multiply_by_units(const Matrix& matrix, const UnitRows& x, const Output& output) {
    constexpr int64_t MOST_TILES = 8;
    const int64_t tiles = x.tiles(), parts = (tiles + MOST_TILES - 1) / MOST_TILES, count = matrix.count();
    const bool one_group = matrix.codes->groups(matrix.in) == 1;
    const int64_t all = (matrix.in + STEP_INPUTS - 1) / STEP_INPUTS * STEP_INPUTS;
    const int64_t each = (one_group ? PAIRED_INPUTS : matrix.codes->size) / STEP_INPUTS;
    parallel_for<MatrixUnits>(parts * count, [&](int64_t task, int, MatrixUnits& units) {
        const int64_t panel = task % count, first = task / count * tiles / parts, last = (task / count + 1) * tiles / parts;
        Tile<f32x16> totals[MOST_TILES], found;
        alignas(64) uint32_t weights[PAIRED_INPUTS / 2 * COLUMNS];
        Group scales[PAIRED_INPUTS / STEP_INPUTS];
        GroupReader groups(matrix, panel, 0, Fp8::FACTOR);
        if (one_group) scales[0] = groups.next();
        for (int64_t begin = 0; begin < all; begin += PAIRED_INPUTS) {
            const int64_t end = std::min(begin + PAIRED_INPUTS, all), steps = (end - begin) / STEP_INPUTS;
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
                        if (step < steps) write_bfloat16(matrix, panel, at, at + STEP_INPUTS, weights + step * STEP);
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

}  // namespace
}  // namespace quire
#endif
