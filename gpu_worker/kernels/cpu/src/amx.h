// The instructions of matrix units (matrix_units.h), by their registers' numbers. Compilers do not know that these read and
// write memory, so they are written out here.
#pragma once

#include <cstdint>

#define QUIRE_MATRIX_UNITS 1

namespace quire {

// `shapes`: 64 bytes, as the processor reads them.
inline void configure_registers(const void* shapes) {
    asm volatile("ldtilecfg (%0)" : : "r"(shapes) : "memory");
}
inline void release_registers() { asm volatile("tilerelease"); }

// `stride`: bytes from row to row.
template <int REGISTER>
inline void load_register(const void* from, int64_t stride) {
    asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "n"(REGISTER) : "memory");
}
template <int REGISTER>
inline void store_register(void* to, int64_t stride) {
    asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "n"(REGISTER) : "memory");
}
template <int REGISTER>
inline void clear_register() {
    asm volatile("tilezero %%tmm%c0" : : "n"(REGISTER));
}

// SUMS += X * WEIGHTS, of words of two bfloat16, in float32.
template <int SUMS, int X, int WEIGHTS>
inline void multiply_bfloat16() {
    asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(SUMS), "n"(X), "n"(WEIGHTS));
}
// The same of words of four bytes, those of x unsigned and those of weights signed, in int32.
template <int SUMS, int X, int WEIGHTS>
inline void multiply_unsigned() {
    asm volatile("tdpbusd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(SUMS), "n"(X), "n"(WEIGHTS));
}
// The same of signed bytes.
template <int SUMS, int X, int WEIGHTS>
inline void multiply_signed() {
    asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "n"(SUMS), "n"(X), "n"(WEIGHTS));
}

}  // namespace quire
