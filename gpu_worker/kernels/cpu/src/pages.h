// How keys and values lie in pages: so that one vector of 16 times 4 bytes is what a product takes.
//
//     keys     of 16 positions, and of 1 (float32), 2 (bfloat16) or 4 (int8) dimensions each
//     values   of 16 dimensions, and of as many positions each
//
//                              float32                    bfloat16                         int8
//     keys     [block][head]   [head_dim][block_size]     [head_dim / 2][block_size][2]    [head_dim / 4][block_size][4]
//     values   [block][head]   [block_size][head_dim]     [block_size / 2][head_dim][2]    [block_size / 4][head_dim][4]
//
// Dimensions of keys, and positions of values, that do not fill such a word lie one by one, as those of float32. Numbers of
// int8 have their scales beside them, float32 [block][head][block_size], for keys and for values.
#pragma once

#include <cstdint>

namespace quire {

// Formats of pages; `cpu/kv/*.py` have these numbers.
enum PageType { PLAIN = 0, INT8 = 1 };

// `run` with a number as pages of that type keep it, where activations are of type T.
template <class T, class Run>
void with_page(int page_type, const Run& run) {
    switch (page_type) {
        case PLAIN: return run(T{});
        case INT8: return run(int8_t{});
    }
}

// Numbers that lie side by side in 4 bytes.
template <class T>
constexpr int64_t PACK = 4 / sizeof(T);

struct Pages {
    int64_t block_size, kv_heads, head_dim;

    // Where what one head keeps in a block begins, in numbers.
    int64_t page(int64_t block, int64_t head) const { return row(block, head) * head_dim; }

    // Where its scales begin.
    int64_t row(int64_t block, int64_t head) const { return (block * kv_heads + head) * block_size; }

    // Where a number is within it.
    template <class T>
    int64_t key(int64_t offset, int64_t d) const {
        const int64_t place = d % PACK<T>;
        if (d - place + PACK<T> > head_dim) return d * block_size + offset;
        return (d - place) * block_size + offset * PACK<T> + place;
    }
    template <class T>
    int64_t value(int64_t offset, int64_t d) const {
        const int64_t place = offset % PACK<T>;
        if (offset - place + PACK<T> > block_size) return offset * head_dim + d;
        return (offset - place) * head_dim + d * PACK<T> + place;
    }
};

}  // namespace quire
