// The matrix units of a processor (AMX): eight registers of 16 rows with 64 bytes each, and their product.
//
// The product of registers adds, for each row of x and each column of weights, the products of as many words as a row
// has: 16. A register of weights has the words of 16 columns side by side, which is the layout of panels, and of keys
// and values in pages:
//
//     x         row 0: word 0, 1, .. 15         weights   word 0: column 0, 1, .. 15
//               row 1: word 0, 1, .. 15                   word 1: column 0, 1, .. 15
//
// A row's sums depend on no other row: a row has the same bits in any tile.
#pragma once

#include "simd.h"

#if defined(__AMX_TILE__)
#include "amx.h"
#endif

// Tests define it, too, where they have the same functions in software.
#if QUIRE_MATRIX_UNITS

namespace quire {

constexpr int REGISTER_ROWS = 16;

// What the registers hold: numbers of bytes in a row, and of rows. As the processor reads it.
struct alignas(64) RegisterShapes {
    uint8_t palette = 1, start = 0, reserved[14] = {};
    uint16_t bytes[16] = {};
    uint8_t rows[16] = {};

    void set(int number, int64_t row_count, int64_t words) {
        rows[number] = uint8_t(row_count);
        bytes[number] = uint16_t(words * sizeof(uint32_t));
    }
    bool operator==(const RegisterShapes&) const = default;
};

// A thread's use of its registers. Their contents are lost when their shapes change.
class MatrixUnits {
public:
    MatrixUnits() = default;
    MatrixUnits(const MatrixUnits&) = delete;
    ~MatrixUnits() {
        if (used) release_registers();
    }
    void shape(const RegisterShapes& shapes) {
        if (used && shapes == now) return;
        now = shapes;
        used = true;
        configure_registers(&now);
    }

private:
    RegisterShapes now;
    bool used = false;
};

// SUMS += X * WEIGHTS, of words of two bfloat16, in float32.
struct UnitBFloat16 {
    using Sum = f32x16;
    template <int SUMS, int X, int WEIGHTS>
    static void multiply() {
        multiply_bfloat16<SUMS, X, WEIGHTS>();
    }
};

// The same of words of four bytes, those of x unsigned and those of weights signed, in int32.
struct UnitInt8 {
    using Sum = i32x16;
    template <int SUMS, int X, int WEIGHTS>
    static void multiply() {
        multiply_unsigned<SUMS, X, WEIGHTS>();
    }
};

// The same of signed bytes.
struct UnitSigned {
    template <int SUMS, int X, int WEIGHTS>
    static void multiply() {
        multiply_signed<SUMS, X, WEIGHTS>();
    }
};

}  // namespace quire
#endif
