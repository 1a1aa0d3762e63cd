// The kernels between a layer's products: RMS norm; rotary embedding of queries and keys, and writing keys and values
// to pages.
#include <type_traits>
#include <vector>

#include "activation.h"
#include "pages.h"
#include "quantize.h"
#include "tape.h"
#include "team.h"
#include "vmath.h"

namespace quire {
namespace {

constexpr int64_t TOKENS = 8;  // tokens of a task

// Call `task(token)` for every token.
template <class Task>
void each_token(int64_t tokens, const Task& task) {
    parallel_for((tokens + TOKENS - 1) / TOKENS, [&](int64_t part, int) {
        for (int64_t token = part * TOKENS; token < tokens && token < (part + 1) * TOKENS; ++token) task(token);
    });
}

// RMS norm: y = weight * round(x / sqrt(mean(x^2) + eps)), rounded to the type W of the weight, as in transformers.
template <class T, class W>
void normalize(const T* x, const W* weight, float eps, int64_t size, T* y) {
    f32x16 squares = {};
    float rest = 0;
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) {
        const f32x16 values = load(x + i);
        squares += values * values;
    }
    for (int64_t k = i; k < size; ++k) rest += to_float(x[k]) * to_float(x[k]);
    const float factor = 1.0f / std::sqrt((sum(squares) + rest) / float(size) + eps);
    for (i = 0; i + LANES <= size; i += LANES) {
        W rounded[LANES];
        store(rounded, load(x + i) * factor);
        store(y + i, load(rounded) * load(weight + i));
    }
    for (; i < size; ++i) {
        W rounded;
        from_float(&rounded, to_float(x[i]) * factor);
        from_float(y + i, to_float(rounded) * to_float(weight[i]));
    }
}

// Call `compute(number, factor)` with a number of the type of the activations and one of the weight's.
template <class Compute>
void with_types(int dtype, int wide, const Compute& compute) {
    if (dtype == 1 && wide)
        compute(bf16{}, float{});
    else if (dtype == 1)
        compute(bf16{}, bf16{});
    else
        compute(float{}, float{});
}

// Rotate one head by the angles of its position: pairs of dimensions (i, i + half).
template <class T, class To>
void rotate(const T* from, const float* cos, const float* sin, int64_t half, To* to) {
    int64_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const f32x16 first = load(from + i), second = load(from + half + i), c = load(cos + i), s = load(sin + i);
        store(to + i, first * c - second * s);
        store(to + half + i, second * c + first * s);
    }
    for (; i < half; ++i) {
        const float first = to_float(from[i]), second = to_float(from[half + i]);
        from_float(to + i, first * cos[i] - second * sin[i]);
        from_float(to + half + i, second * cos[i] + first * sin[i]);
    }
}

// The pages of a layer; of int8 with the scales of each position and head, [blocks, kv_heads, block_size].
template <class Page>
struct Kept {
    Page *keys, *values;
    float *key_scales, *value_scales;
};

// What one head keeps of a position, to its place in a page.
template <class Page>
void write(const Pages& pages, int64_t offset, const Page* key, const Page* value, Page* key_page, Page* value_page) {
    int64_t d = 0;
    for (; d + PACK<Page> <= pages.head_dim; d += PACK<Page>)
        std::memcpy(key_page + pages.key<Page>(offset, d), key + d, PACK<Page> * sizeof(Page));
    for (; d < pages.head_dim; ++d) key_page[pages.key<Page>(offset, d)] = key[d];
    Page* to = value_page + pages.value<Page>(offset, 0);
    const int64_t stride = pages.value<Page>(offset, 1) - pages.value<Page>(offset, 0);
    d = 0;
#if defined(__AVX512BW__)
    if (sizeof(Page) == 2 && stride == 2)
        for (; d + LANES <= pages.head_dim; d += LANES)  // every other place is the other position's
            _mm512_mask_storeu_epi16(to + 2 * d, 0x55555555, _mm512_cvtepu16_epi32(load_bits<__m256i>(value + d)));
#endif
    for (; d < pages.head_dim; ++d) to[d * stride] = value[d];
}

template <class T, class Page>
void rotate_and_write(const T* qkv, int64_t tokens, const int64_t* positions, const int64_t* entries, const float* cos,
                      const float* sin, const Pages& pages, int64_t heads, T* query, const Kept<Page>& kept) {
    const int64_t dim = pages.head_dim, half = dim / 2, kv_heads = pages.kv_heads;
    each_token(tokens, [&](int64_t token) {
        // Rounded once: to the pages' type, or from float32 to int8.
        thread_local std::vector<std::conditional_t<std::is_same_v<T, Page>, T, float>> key;
        thread_local std::vector<uint8_t> bytes[2];
        key.resize(dim);
        const T* from = qkv + token * (heads + 2 * kv_heads) * dim;
        const float *c = cos + positions[token] * half, *s = sin + positions[token] * half;
        const int64_t block = entries[token] / pages.block_size, offset = entries[token] % pages.block_size;
        for (int64_t head = 0; head < heads; ++head, from += dim) rotate(from, c, s, half, query + (token * heads + head) * dim);
        for (int64_t head = 0; head < kv_heads; ++head, from += dim) {
            const T* value = from + kv_heads * dim;
            const int64_t page = pages.page(block, head);
            rotate(from, c, s, half, key.data());
            if constexpr (std::is_same_v<T, Page>) {
                write(pages, offset, key.data(), value, kept.keys + page, kept.values + page);
            } else {
                const int64_t row = pages.row(block, head) + offset;
                for (auto& part : bytes) part.resize(dim + LANES);
                kept.key_scales[row] = quantize_row<0>(key.data(), dim, bytes[0].data());
                kept.value_scales[row] = quantize_row<0>(value, dim, bytes[1].data());
                write(pages, offset, (const int8_t*)bytes[0].data(), (const int8_t*)bytes[1].data(),
                      kept.keys + page, kept.values + page);
            }
        }
    });
}

// x *= activation(gate), number by number.
template <class T>
void multiply(Activation activation, T* x, const T* gates, int64_t size) {
    const auto gate = [&](f32x16 numbers) { return activation == Activation::none ? numbers : activate(activation, numbers); };
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) store(x + i, load(x + i) * gate(load(gates + i)));
    for (; i < size; ++i) from_float(x + i, to_float(x[i]) * gate(splat(to_float(gates[i])))[0]);
}

// x = activation(x), number by number.
template <class T>
void activate_row(Activation activation, T* x, int64_t size) {
    int64_t i = 0;
    for (; i + LANES <= size; i += LANES) store(x + i, activate(activation, load(x + i)));
    for (; i < size; ++i) from_float(x + i, activate(activation, splat(to_float(x[i])))[0]);
}

}  // namespace
}  // namespace quire

using namespace quire;

// `dtype`: 0 float32, 1 bfloat16.

// `wide`: the weight is float32, whatever `dtype` is.
EXPORTED void quire_norm(int dtype, int wide, const void* x, const void* weight, float eps, int64_t tokens, int64_t size, void* y) {
    with_types(dtype, wide, [&](auto number, auto factor) {
        using T = decltype(number);
        using W = decltype(factor);
        each_token(tokens, [&](int64_t token) {
            normalize((const T*)x + token * size, (const W*)weight, eps, size, (T*)y + token * size);
        });
    });
}
PLAYABLE(quire_norm)

// The same in place, for each of `heads` heads of `size` numbers of a token; `stride`: numbers between two tokens.
EXPORTED void quire_norm_heads(int dtype, int wide, void* x, const void* weight, float eps, int64_t tokens, int64_t stride,
                               int64_t heads, int64_t size) {
    with_types(dtype, wide, [&](auto number, auto factor) {
        using T = decltype(number);
        using W = decltype(factor);
        each_token(tokens, [&](int64_t token) {
            T* head = (T*)x + token * stride;
            for (int64_t count = heads; count; --count, head += size) normalize(head, (const W*)weight, eps, size, head);
        });
    });
}
PLAYABLE(quire_norm_heads)

// See `StepAttention.rotate_and_write`; `cos` and `sin` float32 [positions, head_dim / 2].
EXPORTED void quire_rotate_and_write(int dtype, int page_type, const void* qkv, int64_t tokens, const int64_t* positions,
                                     const int64_t* entries, const float* cos, const float* sin, int64_t block_size, int64_t heads,
                                     int64_t kv_heads, int64_t head_dim, void* query, void* keys, void* values,
                                     float* key_scales, float* value_scales) {
    const Pages pages{block_size, kv_heads, head_dim};
    const auto write = [&](auto number) {
        using T = decltype(number);
        with_page<T>(page_type, [&](auto page) {
            using Page = decltype(page);
            const Kept<Page> kept{(Page*)keys, (Page*)values, key_scales, value_scales};
            rotate_and_write((const T*)qkv, tokens, positions, entries, cos, sin, pages, heads, (T*)query, kept);
        });
    };
    dtype == 1 ? write(bf16{}) : write(float{});
}
PLAYABLE(quire_rotate_and_write)

// See `Kernels.multiply`; `stride`, `gate_stride`: numbers between two tokens.
EXPORTED void quire_multiply(int dtype, int activation, int64_t tokens, int64_t size, void* x, int64_t stride,
                             const void* gates, int64_t gate_stride) {
    const auto kind = Activation(activation);
    each_token(tokens, [&](int64_t token) {
        if (dtype == 1)
            multiply(kind, (bf16*)x + token * stride, (const bf16*)gates + token * gate_stride, size);
        else
            multiply(kind, (float*)x + token * stride, (const float*)gates + token * gate_stride, size);
    });
}
PLAYABLE(quire_multiply)

// See `Kernels.activate`; `stride`: numbers between two tokens.
EXPORTED void quire_activate(int dtype, int activation, int64_t tokens, int64_t size, void* x, int64_t stride) {
    const auto kind = Activation(activation);
    each_token(tokens, [&](int64_t token) {
        if (dtype == 1)
            activate_row(kind, (bf16*)x + token * stride, size);
        else
            activate_row(kind, (float*)x + token * stride, size);
    });
}
PLAYABLE(quire_activate)
