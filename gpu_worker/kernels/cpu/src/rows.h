// Rows of activations as the products read them: as words, and not where they fight for the same places
// of the L1 cache.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "team.h"

namespace quire {

// Rows of words: `stride` words from one to the next.
struct Rows {
    const uint32_t* words;
    int64_t count;
    int64_t stride;
};

// Memory that lasts until the next call; one caller at a time.
inline uint32_t* scratch(int64_t words) {
    static std::vector<uint32_t> memory;
    if (int64_t(memory.size()) < words) memory.resize(words);
    return memory.data();
}

constexpr int LINE_WORDS = 16;

// Words from one row to the next that put a tile's rows into different sets of the cache.
inline int64_t spread(int64_t words) { return ((words + LINE_WORDS - 1) / LINE_WORDS | 1) * LINE_WORDS; }

// Rows of `bytes` bytes one after the other: as they are, or, if their last word is not full or many of
// them lie a multiple of 2 KiB apart, as a copy.
inline Rows in_words(const void* x, int64_t count, int64_t bytes) {
    constexpr int64_t MANY = 48, BLOCK = 16;
    const int64_t words = (bytes + 3) / 4;
    const bool crowded = count >= MANY && bytes % 2048 == 0;
    if (bytes % 4 == 0 && !crowded) return {static_cast<const uint32_t*>(x), count, words};
    const int64_t stride = spread(words);
    uint32_t* copy = scratch(count * stride);
    parallel_for((count + BLOCK - 1) / BLOCK, [&](int64_t block, int) {
        for (int64_t row = block * BLOCK; row < (block + 1) * BLOCK && row < count; ++row) {
            copy[row * stride + words - 1] = 0;
            std::memcpy(copy + row * stride, static_cast<const uint8_t*>(x) + row * bytes, bytes);
        }
    });
    return {copy, count, stride};
}

}  // namespace quire
