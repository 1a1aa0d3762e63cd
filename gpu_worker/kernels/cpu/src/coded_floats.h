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

#include "codes.h"

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

template <class Dot, int... BEFORE>
constexpr std::array<Part, TILE_ROWS> parts_of(std::integer_sequence<int, BEFORE...>) {
    return {Words<Dot>::template multiply_part<BEFORE + 1>...};
}
template <class Values, int... BEFORE>
constexpr std::array<Few<Values>, BOTH_HALVES> few_of(std::integer_sequence<int, BEFORE...>) {
    return {multiply_few<Values, BEFORE + 1>...};
}

// The products of 1, 2, .. rows with a part of a panel, and with a whole panel of codes.
constexpr auto MULTIPLY_PART = parts_of<Float32>(std::make_integer_sequence<int, TILE_ROWS>());
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
