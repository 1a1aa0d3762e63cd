// Products with packed weights.
//
// Weights [out, in] lie in panels of 32 outputs, within a panel by inputs, so that a product reads them
// from the first byte to the last:
//
//     panel p, input pair k:   w[p*32 + 0][2k] w[p*32 + 0][2k+1]  w[p*32 + 1][2k] ...  (bfloat16)
//     panel p, input k:        w[p*32 + 0][k]  w[p*32 + 1][k] ...                      (float32)
//
// A tile of a few rows times one panel stays in registers while a slice of inputs passes by. The slice of
// the panel stays in the cache for the next tile of rows: with one row this runs at the memory's speed,
// with many at the multipliers'. Every result adds up its inputs in the same order whatever rows it is
// computed with, so it has the same bits alone and in any batch.
#include <algorithm>
#include <vector>

#include "team.h"
#include "vmath.h"

namespace quire {
namespace {

constexpr int PANEL = 32;  // outputs
constexpr int VECTORS = PANEL / LANES;
constexpr int64_t SLICE = 320;  // inputs that pass by at once, at most: 20 KB of a panel in bfloat16

#if defined(__AVX512F__)
constexpr int TILE = 8;  // rows: 16 sums in 32 registers
#else
constexpr int TILE = 3;
#endif

template <class T>
struct Packed;

template <>
struct Packed<float> {
    static constexpr int INPUTS = 1;  // that lie side by side
    using Entry = float;

    static inline void step(f32x16 (&sums)[VECTORS], const float* panel, const float* x) {
        const float value = *x;
        for (int v = 0; v < VECTORS; ++v) sums[v] += load(panel + v * LANES) * value;
    }
};

template <>
struct Packed<bf16> {
    static constexpr int INPUTS = 2;
    using Entry = bf16;

    static inline void step(f32x16 (&sums)[VECTORS], const bf16* panel, const bf16* x) {
#if defined(__AVX512BF16__)
        uint32_t pair;
        std::memcpy(&pair, x, sizeof(pair));
        const __m512bh values = (__m512bh)_mm512_set1_epi32(int(pair));
        for (int v = 0; v < VECTORS; ++v)
            sums[v] = (f32x16)_mm512_dpbf16_ps((__m512)sums[v], (__m512bh)_mm512_loadu_si512(panel + v * PANEL), values);
#else
        const float even = to_float(x[0]), odd = to_float(x[1]);
        for (int v = 0; v < VECTORS; ++v) {
            const u32x16 pairs = load_bits<u32x16>(panel + v * PANEL);
            sums[v] += (f32x16)(pairs << 16) * even;
            sums[v] += (f32x16)(pairs & 0xFFFF0000u) * odd;
        }
#endif
    }
};

// A tile's sums, float32 [rows][PANEL], wait in `sums` between two slices. The first tile of a slice
// fetches what comes `ahead` of it out of memory.
template <class T, int ROWS>
void tile(const T* panel, const T* x, int64_t x_stride, int steps, float* sums, bool first, bool fetch) {
    using P = Packed<T>;
    // What memory delivers while it is waited for: further for more rows, which compute longer.
    constexpr int AHEAD = ROWS < 4 ? 4096 : 8192;
    f32x16 held[ROWS][VECTORS];
    for (int row = 0; row < ROWS; ++row)
        for (int v = 0; v < VECTORS; ++v)
            held[row][v] = first ? f32x16{} : load(sums + row * PANEL + v * LANES);
    // Three rows to a register: the address of a row is one of these plus none, one or two strides.
    const T* bases[(ROWS + 2) / 3];
    for (int base = 0; base < (ROWS + 2) / 3; ++base) bases[base] = x + base * 3 * x_stride;
    int64_t k = 0;
    for (int step = 0; step < steps; ++step, k += P::INPUTS) {
        const T* entry = panel + k * PANEL;
        if (fetch) {
            const char* far = reinterpret_cast<const char*>(entry) + AHEAD;
            for (size_t byte = 0; byte < sizeof(T) * PANEL * P::INPUTS; byte += 64) __builtin_prefetch(far + byte, 0, 2);
        }
#pragma GCC unroll 8
        for (int row = 0; row < ROWS; ++row) P::step(held[row], entry, bases[row / 3] + row % 3 * x_stride + k);
    }
    for (int row = 0; row < ROWS; ++row)
        for (int v = 0; v < VECTORS; ++v) store(sums + row * PANEL + v * LANES, held[row][v]);
}

template <class T, int ROWS = TILE>
void tile_of(int rows, const T* panel, const T* x, int64_t x_stride, int steps, float* sums, bool first, bool fetch) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return tile_of<T, ROWS - 1>(rows, panel, x, x_stride, steps, sums, first, fetch);
    tile<T, ROWS>(panel, x, x_stride, steps, sums, first, fetch);
}

// float32 sums [rows][PANEL] of one panel and some rows.
template <class T>
void multiply(const T* panel, int64_t inputs, const T* x, int rows, float* sums) {
    constexpr int SIDE = Packed<T>::INPUTS;
    const int tiles = (rows + TILE - 1) / TILE;
    const int64_t slices = (inputs + SLICE - 1) / SLICE;
    for (int64_t slice = 0; slice < slices; ++slice) {
        const int64_t start = inputs / SIDE * slice / slices * SIDE, end = inputs / SIDE * (slice + 1) / slices * SIDE;
        for (int number = 0; number < tiles; ++number) {
            const int begin = rows * number / tiles, count = rows * (number + 1) / tiles - begin;
            tile_of<T>(count, panel + start * PANEL, x + begin * inputs + start, inputs, int(end - start) / SIDE,
                       sums + begin * PANEL, slice == 0, number == 0);
        }
    }
}

// What becomes of the sums: `kind` of quire_linear.
enum Kind { WRITE = 0, ADD = 1, GATED = 2 };

template <class Out>
void finish(const float* sums, int rows, int64_t panel, int64_t outputs, const float* bias, int kind, Out* out) {
    const int width = kind == GATED ? LANES : PANEL;
    const int64_t first = panel * width;
    const int columns = int(std::min<int64_t>(width, outputs - first));
    for (int row = 0; row < rows; ++row) {
        f32x16 values[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
            values[v] = load(sums + row * PANEL + v * LANES);
            if (bias) values[v] += load(bias + panel * PANEL + v * LANES);
        }
        if (kind == GATED) values[0] = values[0] / (exp(-values[0]) + 1.0f) * values[1];
        Out* to = out + row * outputs + first;
        for (int v = 0; v * LANES < columns; ++v) {
            if (columns - v * LANES >= LANES) {
                if (kind == ADD) values[v] += load(to + v * LANES);
                store(to + v * LANES, values[v]);
            } else {
                for (int lane = 0; lane < columns - v * LANES; ++lane) {
                    Out* one = to + v * LANES + lane;
                    from_float(one, values[v][lane] + (kind == ADD ? to_float(*one) : 0.0f));
                }
            }
        }
    }
}

// Rows that one task takes: enough that a panel is read seldom, few enough that its rows stay cached.
constexpr int64_t ROWS = 96;

template <class T, class Out>
void linear(const T* x, int64_t rows, const T* packed, const float* bias, int64_t inputs, int64_t outputs, int kind,
            Out* out) {
    const int64_t width = kind == GATED ? LANES : PANEL;
    const int64_t panels = (outputs + width - 1) / width;
    const int64_t parts = (rows + ROWS - 1) / ROWS;
    // Row parts within a panel one after the other: what one task has read, the next finds in the cache.
    parallel_for(panels * parts, [&](int64_t task, int) {
        thread_local std::vector<float> sums(ROWS * PANEL);
        const int64_t panel = task / parts, part = task % parts;
        const int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
        multiply(packed + panel * PANEL * inputs, inputs, x + begin * inputs, int(end - begin), sums.data());
        finish(sums.data(), int(end - begin), panel, outputs, bias, kind, out + begin * outputs);
    });
}

template <class T>
void pack(const T* weight, int64_t rows, int64_t inputs, int64_t padded, T* packed, bool gated) {
    constexpr int SIDE = Packed<T>::INPUTS;
    const int64_t outputs = gated ? rows / 2 : rows;
    const int64_t width = gated ? LANES : PANEL;
    parallel_for((outputs + width - 1) / width, [&](int64_t panel, int) {
        T* to = packed + panel * PANEL * padded;
        for (int64_t k = 0; k < padded; k += SIDE)
            for (int column = 0; column < PANEL; ++column)
                for (int side = 0; side < SIDE; ++side, ++to) {
                    const int64_t output = panel * width + (gated ? column % LANES : column);
                    const int64_t row = gated && column >= LANES ? outputs + output : output;
                    *to = output < outputs && k + side < inputs ? weight[row * inputs + k + side] : T{};
                }
    });
}

template <class T>
void unpack(const T* packed, int64_t inputs, int64_t padded, const int64_t* numbers, int64_t count, T* out) {
    constexpr int SIDE = Packed<T>::INPUTS;
    for (int64_t number = 0; number < count; ++number) {
        const T* from = packed + numbers[number] / PANEL * PANEL * padded + numbers[number] % PANEL * SIDE;
        for (int64_t k = 0; k < inputs; ++k) out[number * inputs + k] = from[k / SIDE * PANEL * SIDE + k % SIDE];
    }
}

}  // namespace
}  // namespace quire

using namespace quire;

// Weights [rows, inputs] into panels of `padded` inputs; `dtype` 0 float32, 1 bfloat16. Gated: the first
// half of the rows are gates, and a panel has 16 of them beside the 16 rows that they gate.
extern "C" void quire_pack(const void* weight, int64_t rows, int64_t inputs, int64_t padded, int dtype, int gated,
                           void* packed) {
    if (dtype == 1)
        pack(static_cast<const bf16*>(weight), rows, inputs, padded, static_cast<bf16*>(packed), gated);
    else
        pack(static_cast<const float*>(weight), rows, inputs, padded, static_cast<float*>(packed), gated);
}

// Rows of the weights as they were, [count, inputs].
extern "C" void quire_unpack(const void* packed, int64_t inputs, int64_t padded, int dtype, const int64_t* numbers,
                             int64_t count, void* out) {
    if (dtype == 1)
        unpack(static_cast<const bf16*>(packed), inputs, padded, numbers, count, static_cast<bf16*>(out));
    else
        unpack(static_cast<const float*>(packed), inputs, padded, numbers, count, static_cast<float*>(out));
}

// out [rows, outputs] from x [rows, inputs] and packed weights; inputs as padded. `kind`: 0 write, 1 add to what is
// there, 2 gated. `bias`: float32, in the order of panels, or null. `wide`: out is float32 whatever x is.
extern "C" void quire_linear(const void* x, int64_t rows, const void* packed, const float* bias, int64_t inputs,
                             int64_t outputs, int dtype, int kind, int wide, void* out) {
    if (dtype == 0)
        linear(static_cast<const float*>(x), rows, static_cast<const float*>(packed), bias, inputs, outputs, kind,
               static_cast<float*>(out));
    else if (wide)
        linear(static_cast<const bf16*>(x), rows, static_cast<const bf16*>(packed), bias, inputs, outputs, kind,
               static_cast<float*>(out));
    else
        linear(static_cast<const bf16*>(x), rows, static_cast<const bf16*>(packed), bias, inputs, outputs, kind,
               static_cast<bf16*>(out));
}
