// Calls that are recorded and repeated: see `kernels/cpu/tape.py`.
#pragma once
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
#include <utility>

#include "exported.h"

namespace quire {

// An argument from the word that a tape keeps of it: a number's or an address's bits, the lowest first.
template <class T>
T from_word(uint64_t word) {
    if constexpr (std::is_pointer_v<T>)
        return reinterpret_cast<T>(word);
    else if constexpr (std::is_same_v<T, float>)
        return std::bit_cast<float>(static_cast<uint32_t>(word));
    else
        return static_cast<T>(word);
}

template <class... T, std::size_t... I>
void call(void (*kernel)(T...), const uint64_t* words, std::index_sequence<I...>) {
    kernel(from_word<T>(words[I])...);
}

template <class... T>
void call(void (*kernel)(T...), const uint64_t* words) {
    call(kernel, words, std::index_sequence_for<T...>{});
}

}  // namespace quire

// Let calls of a kernel be repeated: `kernel`_play calls it with words as its arguments.
#define PLAYABLE(kernel) \
    EXPORTED void kernel##_play(const uint64_t* words) { quire::call(kernel, words); }
