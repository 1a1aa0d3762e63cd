// Products with weights as a checkpoint has them: codes of 4, 5, 6 or 8 bits, and scales of groups of inputs.
//
//     weight  =  value(code) * scale + shift
//
// Where the values are whole numbers, or halves of them, products are of bytes (coded_bytes.h), otherwise of float32
// (coded_floats.h), or those of fp8 of bfloat16 (coded_bfloat16.h).
#include "coded_bfloat16.h"
#include "coded_bytes.h"
#include "tape.h"

namespace quire {
namespace {

// x itself, or its rows in the order of the codes.
const void* in_order(const Matrix& matrix, const void* x, int64_t rows) {
    const int32_t* order = matrix.codes->order;
    if (!order) return x;
    static thread_local std::vector<uint32_t> memory;
    const auto gather = [&](const auto* from) {
        using Number = std::remove_const_t<std::remove_pointer_t<decltype(from)>>;
        if (int64_t(memory.size()) < rows * matrix.in) memory.resize(rows * matrix.in);
        auto* to = reinterpret_cast<Number*>(memory.data());
        prepare(rows, [&](int64_t row, int) {
            for (int64_t at = 0; at < matrix.in; ++at) to[row * matrix.in + at] = from[row * matrix.in + order[at]];
        });
    };
    if (matrix.type == Type::float32)
        gather(static_cast<const float*>(x));
    else
        gather(static_cast<const bf16*>(x));
    return memory.data();
}

// Rows of activations in float32.
Rows floats_of(const Matrix& matrix, const void* x, int64_t count) {
    if (matrix.type == Type::float32) return in_words(x, count, matrix.row_bytes());
    return widened(static_cast<const bf16*>(x), count, matrix.in);
}

// Call `bytes` or `floats` with what reads a matrix's codes.
template <class Bytes, class Floats>
void by_kind(const Codes& codes, const Bytes& bytes, const Floats& floats) {
    switch (codes.kind) {
        case Codes::Kind::int8: return bytes(Octets(codes));
        case Codes::Kind::whole: return bytes(Nibbles<false>(codes));
        case Codes::Kind::small: return bytes(Nibbles<true>(codes));
        case Codes::Kind::five: return bytes(Split<1>(codes));
        case Codes::Kind::six: return bytes(Split<2>(codes));
        case Codes::Kind::fp8: return floats(Fp8(codes));
        case Codes::Kind::table: return floats(Table(codes));
    }
}

}  // namespace
}  // namespace quire

// Write a matrix's panels, which are zeros before, from its codes, a byte each [rows, in].
EXPORTED void quire_coded_pack(const quire::Matrix* matrix, const uint8_t* codes, uint32_t* panels) {
    using namespace quire;
    const int64_t in = matrix->in;
    const auto each = [&](int64_t words, const auto& put) {  // words of a panel
        parallel_for(matrix->count(), [&](int64_t panel, int) {
            for (int column = 0; column < COLUMNS; ++column) {
                const int64_t row = matrix->source(panel, column);
                for (int64_t at = 0; row >= 0 && at < in; ++at) put(panels + panel * words, column, at, codes[row * in + at]);
            }
        });
    };
    by_kind(
        *matrix->codes,
        [&](const auto& code) {
            using Code = std::decay_t<decltype(code)>;
            each(panel_words<Code>(*matrix), [&](uint32_t* to, int column, int64_t at, uint8_t number) {
                code.put(to + at / Code::INPUTS * Code::WORDS * COLUMNS + column, at % Code::INPUTS, number);
            });
        },
        [&](const auto& values) {
            constexpr int INPUTS = std::decay_t<decltype(values)>::INPUTS;
            each((in + INPUTS - 1) / INPUTS * COLUMNS / 4, [](uint32_t* to, int column, int64_t at, uint32_t number) {
                reinterpret_cast<uint8_t*>(to)[at / INPUTS * COLUMNS + column] |= number << at % INPUTS * 4;
            });
        });
}

// As `quire_quantized_rows`.
EXPORTED void quire_coded_rows(const quire::Matrix* matrix, const int64_t* ids, int64_t count, void* out) {
    using namespace quire;
    const int32_t* order = matrix->codes->order;
    const auto write = [&](int64_t number) {
        return [=](int64_t at, float weight) { matrix->write(out, number * matrix->in + (order ? order[at] : at), weight); };
    };
    by_kind(
        *matrix->codes,
        [&](const auto& code) {
            parallel_for(count, [&](int64_t number, int) { read_row(*matrix, code, ids[number], write(number)); });
        },
        [&](const auto& values) {
            parallel_for(count, [&](int64_t number, int) { read_column(*matrix, values, ids[number], write(number)); });
        });
}

// As `quire_linear`.
EXPORTED void quire_coded(const quire::Matrix* matrix, const void* x, int64_t rows, void* out, int add) {
    using namespace quire;
    const Output output = matrix->output(out, add);
    x = in_order(*matrix, x, rows);
    by_kind(
        *matrix->codes, [&](const auto& code) { multiply_bytes(*matrix, code, x, rows, output); },
        [&](const auto& values) {
            [[maybe_unused]] constexpr bool fp8 = std::is_same_v<std::decay_t<decltype(values)>, Fp8>;
#if QUIRE_MATRIX_UNITS
            if (fp8 && fits_units(*matrix)) return multiply_by_units(*matrix, in_steps(x, rows, matrix->row_bytes()), output);
#elif QUIRE_PAIRS
            if (fp8 && fits_pairs(*matrix)) return multiply_pairs(*matrix, in_words(x, rows, matrix->row_bytes()), output);
#endif
            multiply_floats(*matrix, values, floats_of(*matrix, x, rows), output);
        });
}
PLAYABLE(quire_coded)
