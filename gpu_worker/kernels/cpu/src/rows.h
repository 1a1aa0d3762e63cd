// Rows of activations in whole words, with a stride that avoids conflicts in the L1 cache.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "simd.h"
#include "team.h"

namespace quire {

// Rows of words. `stride`: words from one row to the next.
struct Rows {
    const uint32_t* words;
    int64_t count;
    int64_t stride;
};

// Memory for one product, of a thread with a share its own, valid until the next call.
inline uint32_t* scratch(int64_t words) {
    static std::vector<uint32_t> common;
    static thread_local std::vector<uint32_t> own;
    std::vector<uint32_t>& memory = sharing ? own : common;
    if (int64_t(memory.size()) < words) memory.resize(words);
    return memory.data();
}

constexpr int LINE_WORDS = 16;

// A stride of rows of `words` words, in words, that puts the rows of a tile into different sets of the cache.
inline int64_t padded_stride(int64_t words) { return ((words + LINE_WORDS - 1) / LINE_WORDS | 1) * LINE_WORDS; }

// Contiguous rows of `bytes` bytes as rows of words. They are copied if their last word is not full, or if many rows
// are a multiple of 2 KiB apart, which would put them into the same sets of the cache.
inline Rows in_words(const void* x, int64_t count, int64_t bytes) {
    constexpr int64_t MANY = 48, BLOCK = 16;
    const int64_t words = (bytes + 3) / 4;
    const bool crowded = count >= MANY && bytes % 2048 == 0;
    if (bytes % 4 == 0 && !crowded) return {static_cast<const uint32_t*>(x), count, words};
    const int64_t stride = padded_stride(words);
    uint32_t* copy = scratch(count * stride);
    prepare((count + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < count; ++row) {
            copy[row * stride + words - 1] = 0;
            std::memcpy(copy + row * stride, static_cast<const uint8_t*>(x) + row * bytes, bytes);
        }
    });
    return {copy, count, stride};
}

// Contiguous rows of `size` bfloat16 as rows of float32, a word each; the last word is zero if `size` is odd.
inline Rows widened(const bf16* x, int64_t count, int64_t size) {
    constexpr int64_t BLOCK = 16;
    const int64_t stride = padded_stride(size + 1);
    uint32_t* copy = scratch(count * stride);
    prepare((count + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < count; ++row) {
            float* to = reinterpret_cast<float*>(copy + row * stride);
            to_floats(x + row * size, size, to);
            to[size] = 0;
        }
    });
    return {copy, count, stride};
}

}  // namespace quire
