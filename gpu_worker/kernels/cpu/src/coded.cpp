// Products with weights as a checkpoint has them: codes of 4 or 8 bits, and scales of groups of inputs.
//
//     weight  =  value(code) * scale + shift
//
// A panel has the codes of 32 outputs for one input after the other, in bytes. Codes of 4 bits share a byte with those
// of the next input, which are its upper half:
//
//     input 0: output 0, 1, .. 31 │ input 1: output 0, 1, .. 31        4 bits: inputs 0 and 1: output 0 .. │ inputs 2 and 3
//
// A part of a panel at a time becomes float32 in the L1 cache, and is multiplied as a panel of float32. Neither weights
// nor activations are rounded to fewer bits. All rows of a task share the part.
#include "half.h"
#include "matrix.h"
#include "tape.h"

namespace quire {

// What the codes of a matrix mean; `_Codes` in coded.py has the same fields. Scales and shifts lie in the order of panels,
// groups and columns. The scale of a group is one of `halves` or of `scales`, times one of `factors` if there are any.
struct Codes {
    enum class Kind : int32_t { table, int8, fp8 } kind;
    int64_t size;            // inputs of a group, an even number
    int64_t span;            // inputs that share a factor, a multiple of `size`
    const uint16_t* halves;  // float16, or null
    const float* scales;     // null if there are halves
    const float* factors;    // or null
    const float* shifts;     // or null
    const int32_t* order;    // the input of each code of a row, or null: the codes' own order
    float table[16];         // of codes of 4 bits: the value of each

    int64_t inputs() const { return kind == Kind::table ? 2 : 1; }  // inputs of a byte
};

namespace {

// Inputs of a part: with 32 columns of float32 they fill a quarter of an L1 cache.
constexpr int64_t PART_INPUTS = 64;
constexpr int64_t TASK_TILES = TASK_ROWS / TILE_ROWS;

int64_t panel_bytes(const Matrix& matrix) {
    const int64_t inputs = matrix.codes->inputs();
    return (matrix.in + inputs - 1) / inputs * COLUMNS;
}

// The values of 16 codes in the bytes from `from` on, for each of INPUTS inputs. They are to be multiplied with FACTOR.
struct Int8 {
    static constexpr int INPUTS = 1;
    static constexpr float FACTOR = 1;
    explicit Int8(const Codes&) {}
    void read(const uint8_t* from, f32x16* values) const { values[0] = load(reinterpret_cast<const int8_t*>(from)); }
};

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

// Call `then` with the values of a matrix's codes.
template <class Then>
void with_values(const Codes& codes, const Then& then) {
    if (codes.kind == Codes::Kind::int8)
        then(Int8(codes));
    else if (codes.kind == Codes::Kind::fp8)
        then(Fp8(codes));
    else
        then(Table(codes));
}

// Dequantize inputs `first` to `last` - 1 of a panel, to COLUMNS numbers for each. `first` is even. An input more may be
// written.
template <class Values>
void dequantize(const Matrix& matrix, const Values& values, int64_t panel, int64_t first, int64_t last, float* to) {
    const Codes& codes = *matrix.codes;
    const int64_t groups = (matrix.in + codes.size - 1) / codes.size, spans = (matrix.in + codes.span - 1) / codes.span;
    const uint8_t* from = reinterpret_cast<const uint8_t*>(matrix.panels) + panel * panel_bytes(matrix) +
                          first / Values::INPUTS * COLUMNS;
    for (int64_t at = first; at < last;) {
        const int64_t group = at / codes.size, end = std::min(last, (group + 1) * codes.size);
        const int64_t place = (panel * groups + group) * COLUMNS;
        f32x16 scales[2], shifts[2] = {};
        for (int half = 0; half < 2; ++half) {
            const int64_t column = place + half * LANES;
            scales[half] = codes.halves ? from_halves(load_bits<u16x16>(codes.halves + column)) : load(codes.scales + column);
            if (codes.factors)
                scales[half] *= load(codes.factors + (panel * spans + at / codes.span) * COLUMNS + half * LANES);
            scales[half] *= Values::FACTOR;
            if (codes.shifts) shifts[half] = load(codes.shifts + column);
        }
        for (; at < end; at += Values::INPUTS, from += COLUMNS, to += Values::INPUTS * COLUMNS)
#pragma GCC unroll 2
            for (int half = 0; half < 2; ++half) {
                f32x16 found[Values::INPUTS];
                values.read(from + half * LANES, found);
#pragma GCC unroll 2
                for (int input = 0; input < Values::INPUTS; ++input)
                    store(to + input * COLUMNS + half * LANES, found[input] * scales[half] + shifts[half]);
            }
    }
}

// Rows of activations in float32, in the order of the codes.
Rows rows_of(const Matrix& matrix, const void* x, int64_t count) {
    const int32_t* order = matrix.codes->order;
    if (!order && matrix.type == Type::float32) return in_words(x, count, matrix.row_bytes());
    if (!order) return widened(static_cast<const bf16*>(x), count, matrix.in);
    constexpr int64_t BLOCK = 8;
    const int64_t stride = padded_stride(matrix.in);
    auto* memory = reinterpret_cast<float*>(scratch(count * stride));
    const auto gather = [&](const auto* from) {
        parallel_for((count + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
            for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < count; ++row)
                for (int64_t at = 0; at < matrix.in; ++at)
                    memory[row * stride + at] = to_float(from[row * matrix.in + order[at]]);
        });
    };
    if (matrix.type == Type::float32)
        gather(static_cast<const float*>(x));
    else
        gather(static_cast<const bf16*>(x));
    return {reinterpret_cast<const uint32_t*>(memory), count, stride};
}

using Part = void (*)(const uint32_t*, int64_t, const uint32_t*, int64_t, bool, Tile<f32x16>&);

template <int... BEFORE>
constexpr std::array<Part, TILE_ROWS> parts_of(std::integer_sequence<int, BEFORE...>) {
    return {Words<Float32>::multiply_part<BEFORE + 1>...};
}

// The products of 1, 2, .. TILE_ROWS rows with a part of a panel.
constexpr auto MULTIPLY_PART = parts_of(std::make_integer_sequence<int, TILE_ROWS>());

template <class Values>
void multiply_all(const Matrix& matrix, const Values& values, const Rows& x, const Output& output) {
    const int64_t tiles = (x.count + TILE_ROWS - 1) / TILE_ROWS, parts = (tiles + TASK_TILES - 1) / TASK_TILES;
    parallel_for(parts * matrix.count(), [&](int64_t task, int) {
        const int64_t panel = task / parts, part = task % parts;
        const int64_t first = part * tiles / parts, last = (part + 1) * tiles / parts;
        const auto row_of = [&](int64_t tile) { return tile * x.count / tiles; };
        Tile<f32x16> sums[TASK_TILES];
        alignas(64) float weights[(PART_INPUTS + 1) * COLUMNS];
        for (int64_t begin = 0; begin < matrix.in; begin += PART_INPUTS) {
            const int64_t end = std::min(begin + PART_INPUTS, matrix.in);
            dequantize(matrix, values, panel, begin, end, weights);
            for (int64_t tile = first; tile < last; ++tile) {
                const int64_t row = row_of(tile);
                MULTIPLY_PART[row_of(tile + 1) - row - 1](x.words + row * x.stride + begin, x.stride,
                                                          reinterpret_cast<const uint32_t*>(weights), end - begin,
                                                          begin == 0, sums[tile - first]);
            }
        }
        for (int64_t tile = first; tile < last; ++tile) {
            const int64_t row = row_of(tile);
            const int count = int(row_of(tile + 1) - row);
            if (matrix.writes_float32())
                finish<float>(output, panel, row, count, sums[tile - first]);
            else
                finish<bf16>(output, panel, row, count, sums[tile - first]);
        }
    });
}

}  // namespace
}  // namespace quire

// Write a matrix's panels, which are zeros before, from its codes, a byte each [rows, in].
extern "C" void quire_coded_pack(const quire::Matrix* matrix, const uint8_t* codes, uint8_t* panels) {
    using namespace quire;
    const int64_t in = matrix->in, inputs = matrix->codes->inputs(), size = panel_bytes(*matrix);
    parallel_for(matrix->count(), [&](int64_t panel, int) {
        for (int column = 0; column < COLUMNS; ++column) {
            const int64_t row = matrix->source(panel, column);
            if (row < 0) continue;
            uint8_t* to = panels + panel * size + column;
            for (int64_t at = 0; at < in; ++at) to[at / inputs * COLUMNS] |= codes[row * in + at] << (at % inputs * 4);
        }
    });
}

// As `quire_quantized_rows`.
extern "C" void quire_coded_rows(const quire::Matrix* matrix, const int64_t* ids, int64_t count, void* out) {
    using namespace quire;
    with_values(*matrix->codes, [&](const auto& values) {
        parallel_for(count, [&](int64_t number, int) {
            const int32_t* order = matrix->codes->order;
            alignas(64) float weights[(PART_INPUTS + 1) * COLUMNS];
            for (int64_t begin = 0; begin < matrix->in; begin += PART_INPUTS) {
                const int64_t end = std::min(begin + PART_INPUTS, matrix->in);
                dequantize(*matrix, values, ids[number] / COLUMNS, begin, end, weights);
                for (int64_t at = begin; at < end; ++at)
                    matrix->write(out, number * matrix->in + (order ? order[at] : at),
                                  weights[(at - begin) * COLUMNS + ids[number] % COLUMNS]);
            }
        });
    });
}

// As `quire_linear`.
extern "C" void quire_coded(const quire::Matrix* matrix, const void* x, int64_t rows, void* out, int add) {
    using namespace quire;
    const Rows source = rows_of(*matrix, x, rows);
    const Output output = matrix->output(out, add);
    with_values(*matrix->codes, [&](const auto& values) { multiply_all(*matrix, values, source, output); });
}
PLAYABLE(quire_coded)
