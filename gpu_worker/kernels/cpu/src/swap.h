// Lanes of a vector that change places.
#pragma once

#include "simd.h"

namespace quire {

// Each lane of a register changes places with the one whose number differs in the bit DISTANCE.
template <int DISTANCE>
struct Exchange {
    static constexpr int of(int lane) { return lane ^ DISTANCE; }
};

// The same of the lanes of a vector.
template <int DISTANCE, class V>
inline V swapped(V v) {
    if constexpr (!IsPair<V>::value) {
        return reordered(v, Exchange<DISTANCE>(), Lanes());
    } else if constexpr (sizeof(v.low) == DISTANCE * sizeof(float)) {
        return {v.high, v.low};
    } else {
        return {swapped<DISTANCE>(v.low), swapped<DISTANCE>(v.high)};
    }
}

}  // namespace quire
