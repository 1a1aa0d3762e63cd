// Activation functions, of 16 lanes.
#pragma once

#include "vmath.h"

namespace quire {

enum class Activation : int32_t { none, silu, gelu_tanh, gelu, sigmoid, relu, relu2, tanh };

// `function` of each lane.
template <class Function>
inline f32x16 each_lane(f32x16 x, const Function& function) {
    float numbers[LANES];
    store(numbers, x);
    for (float& number : numbers) number = function(number);
    return load(numbers);
}

inline f32x16 sigmoid(f32x16 x) { return 1.0f / (1.0f + exp(-x)); }

// log(1 + e^x), to about two units in the last place. With y = e^-|x|, log(1 + y) is 2 artanh(y / (2 + y)).
inline f32x16 softplus(f32x16 x) {
    const i32x16 positive = x > 0.0f;
    const f32x16 y = exp(select(positive, -x, x)), part = y / (2.0f + y), square = part * part;
    f32x16 poly = splat(2.0f / 13);
    for (const float term : {2.0f / 11, 2.0f / 9, 2.0f / 7, 2.0f / 5, 2.0f / 3, 2.0f}) poly = poly * square + term;
    return select(positive, x, f32x16{}) + poly * part;
}

inline f32x16 activate(Activation activation, f32x16 x) {
    switch (activation) {
        case Activation::silu:
            return x * sigmoid(x);
        case Activation::gelu_tanh:  // (1 + tanh y) / 2 = sigmoid 2y
            return x * sigmoid(2 * 0.7978845608f * (x + 0.044715f * x * x * x));
        case Activation::gelu:
            return each_lane(x, [](float x) { return x * (0.5f * (1.0f + std::erf(x * 0.7071067812f))); });
        case Activation::sigmoid:
            return sigmoid(x);
        case Activation::relu:
            return select(x < 0.0f, f32x16{}, x);
        case Activation::relu2:
            x = select(x < 0.0f, f32x16{}, x);
            return x * x;
        case Activation::tanh:
            return tanh(x);
        case Activation::none:
            break;
    }
    return x;
}

}  // namespace quire
