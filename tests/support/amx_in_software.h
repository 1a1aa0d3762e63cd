// The instructions of matrix units (gpu_worker/kernels/cpu/src/amx.h) in software, as Intel's manual (volume 2, AMX) says
// what they compute, for processors that have none. Included before the kernels' sources (`-include`).
//
// A program is stopped where a processor would stop it: by shapes that do not fit, or registers without shapes.
//
// Products of bfloat16 are rounded as there: the first numbers of pairs are added up in float32, from the first word to the
// last, each sum rounded to the nearest, and the second ones by themselves; then both sums, and these with what was there.
// What is smaller than any normal number is 0, whether it is read or computed. A product of two bfloat16 is a float32, so it
// does not matter whether it is rounded before it is added, but where it is larger than any number, or smaller than a normal one.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#define QUIRE_MATRIX_UNITS 1

namespace quire {

// Words of 16 columns, as numbers of three types.
using SoftwareFloats = float __attribute__((vector_size(64)));
using SoftwareInts = int32_t __attribute__((vector_size(64)));
using SoftwareWords = uint32_t __attribute__((vector_size(64)));

struct SoftwareRegister {
    static constexpr int ROWS = 16;
    int rows, words;  // as it was configured; 0: not
    SoftwareWords numbers[ROWS];
};

// Those of a thread.
inline thread_local SoftwareRegister software_registers[8];
inline thread_local bool configured = false;

inline void expect(bool fits, const char* what) {
    if (fits) return;
    std::fprintf(stderr, "matrix units: %s\n", what);
    std::abort();
}

inline void release_registers() {
    std::memset(software_registers, 0, sizeof(software_registers));
    configured = false;
}

inline void configure_registers(const void* shapes) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } given;
    static_assert(sizeof(given) == 64);
    std::memcpy(&given, shapes, sizeof(given));
    expect(given.palette == 1 && given.start == 0, "a palette that there is not");
    for (uint8_t byte : given.reserved) expect(byte == 0, "a byte that is reserved");
    release_registers();
    for (int number = 0; number < 16; ++number) {
        const int rows = given.rows[number], bytes = given.bytes[number];
        expect(rows <= SoftwareRegister::ROWS && bytes <= 64 && (rows == 0) == (bytes == 0), "a shape that does not fit");
        expect(bytes % 4 == 0, "a row that ends within a word");
        expect(number < 8 || rows == 0, "a register that there is not");
        if (number >= 8) continue;
        software_registers[number].rows = rows;
        software_registers[number].words = bytes / 4;
    }
    configured = true;
}

template <int REGISTER>
inline SoftwareRegister& software_register() {
    static_assert(REGISTER >= 0 && REGISTER < 8);
    expect(configured && software_registers[REGISTER].rows, "a register without a shape");
    return software_registers[REGISTER];
}

// `stride`: bytes from row to row.
template <int REGISTER>
inline void load_register(const void* from, int64_t stride) {
    SoftwareRegister& to = software_register<REGISTER>();
    std::memset(to.numbers, 0, sizeof(to.numbers));
    for (int row = 0; row < to.rows; ++row)
        std::memcpy(&to.numbers[row], static_cast<const char*>(from) + row * stride, to.words * sizeof(uint32_t));
}
template <int REGISTER>
inline void store_register(void* to, int64_t stride) {
    const SoftwareRegister& from = software_register<REGISTER>();
    for (int row = 0; row < from.rows; ++row)
        std::memcpy(static_cast<char*>(to) + row * stride, &from.numbers[row], from.words * sizeof(uint32_t));
}
template <int REGISTER>
inline void clear_register() {
    SoftwareRegister& cleared = software_register<REGISTER>();
    std::memset(cleared.numbers, 0, sizeof(cleared.numbers));
}

// For each row of X: calls `add(sums, word, weights)` with each of its words and the row of WEIGHTS that this belongs to, and
// then `end(sums, row)` with the row of SUMS. `Sums` are 0 at first.
template <int SUMS, int X, int WEIGHTS, class Sums, class Add, class End>
inline void multiply_registers(const Add& add, const End& end) {
    static_assert(SUMS != X && SUMS != WEIGHTS && X != WEIGHTS);
    SoftwareRegister& sums = software_register<SUMS>();
    const SoftwareRegister &x = software_register<X>(), &weights = software_register<WEIGHTS>();
    expect(sums.rows == x.rows && sums.words == weights.words && x.words == weights.rows, "shapes that do not fit each other");
    for (int row = 0; row < sums.rows; ++row) {
        Sums found = {};
        for (int word = 0; word < x.words; ++word) add(found, x.numbers[row][word], weights.numbers[word]);
        end(found, sums.numbers[row]);
    }
}

// 0 instead of what is smaller than a normal number.
inline SoftwareFloats normal(SoftwareFloats numbers) {
    const SoftwareWords bits = (SoftwareWords)numbers;
    return (SoftwareFloats)(bits & ((SoftwareWords)((bits & 0x7F800000) != 0) | 0x80000000));
}
inline SoftwareFloats first_of(SoftwareWords pairs) { return normal((SoftwareFloats)(pairs << 16)); }
inline SoftwareFloats second_of(SoftwareWords pairs) { return normal((SoftwareFloats)(pairs & 0xFFFF0000u)); }

template <int SUMS, int X, int WEIGHTS>
inline void multiply_bfloat16() {
    struct Sums {
        SoftwareFloats first, second;
    };
    multiply_registers<SUMS, X, WEIGHTS, Sums>(
        [](Sums& sums, uint32_t x, SoftwareWords weights) {
            const SoftwareWords same = SoftwareWords{} + x;
            sums.first = normal(sums.first + first_of(same) * first_of(weights));
            sums.second = normal(sums.second + second_of(same) * second_of(weights));
        },
        [](const Sums& sums, SoftwareWords& before) {
            before = (SoftwareWords)normal(normal((SoftwareFloats)before) + normal(sums.first + sums.second));
        });
}

// Words of four bytes. Those of X become 32 bits by `number`, those of WEIGHTS with their signs.
template <int SUMS, int X, int WEIGHTS, class Number>
inline void multiply_bytes(const Number& number) {
    multiply_registers<SUMS, X, WEIGHTS, SoftwareInts>(
        [&](SoftwareInts& sums, uint32_t x, SoftwareWords weights) {
            for (int byte = 0; byte < 32; byte += 8)
                sums += int32_t(number(x >> byte)) * ((SoftwareInts)(weights << (24 - byte)) >> 24);
        },
        [](const SoftwareInts& sums, SoftwareWords& before) { before += (SoftwareWords)sums; });
}
template <int SUMS, int X, int WEIGHTS>
inline void multiply_unsigned() {
    multiply_bytes<SUMS, X, WEIGHTS>([](uint32_t byte) { return uint8_t(byte); });
}
template <int SUMS, int X, int WEIGHTS>
inline void multiply_signed() {
    multiply_bytes<SUMS, X, WEIGHTS>([](uint32_t byte) { return int8_t(byte); });
}

}  // namespace quire
