// A mixture of experts. Each token is routed to some experts; the tokens of each expert are gathered, go through its two
// products, and are weighted and added up.
//
//     token 0 → experts 2, 5         expert 2: tokens 0, 1  →  up  →  activation  →  down  →  sums of 0, 1
//     token 1 → experts 2, 3         expert 3: token 1      →  ..
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "matrix.h"
#include "tape.h"

namespace quire {
namespace {

using Product = void (*)(const Matrix* matrix, const void* x, int64_t rows, void* out, int add);

// A product of any type of weights.
struct Weights {
    const Matrix* matrix;
    Product multiply;
};

struct Expert {
    Weights up, down;
};

// What comes between the products of an expert. Gated: up's product has done it.
enum class Between : int32_t { gated, clamped, squared };

// `_Mixture` in mixture.py has the same fields.
struct Mixture {
    const Expert* experts;
    int64_t count;
    int64_t size;
    int64_t inner;
    Type type;  // of tokens, and of results of products
    Between between;
    float alpha;  // clamped: see `Clamped` in products.py
    float limit;
};

// Rows of some experts that are computed at once: results between their products stay in the cache.
constexpr int64_t ROWS_AT_ONCE = 1024;
// Shares of products for each thread of the team: with several, threads that are done take those of slower ones.
constexpr int64_t SHARES = 4;

// Memory that stays, as in `scratch`.
template <class Number>
Number* at_least(std::vector<Number>& memory, int64_t numbers) {
    if (int64_t(memory.size()) < numbers) memory.resize(numbers);
    return memory.data();
}

// Call `compute(at, vector, count)` for 16 numbers of `size` at a time, of which the last ones are fewer than a vector.
template <class T, class Compute>
void each_vector(const T* from, int64_t size, const Compute& compute) {
    int64_t at = 0;
    for (; at + LANES <= size; at += LANES) compute(at, load(from + at), LANES);
    if (at < size) {
        T rest[LANES] = {};
        std::copy(from + at, from + size, rest);
        compute(at, load(rest), size - at);
    }
}

// (up + 1) * gate * sigmoid(alpha * gate) of a row's gates and then ups, clamped.
template <class T>
void clamp(const Mixture& mixture, const T* row, T* to) {
    const int64_t inner = mixture.inner;
    const f32x16 limit = splat(mixture.limit);
    each_vector(row, inner, [&](int64_t at, f32x16 gate, int64_t count) {
        T ups[LANES] = {};
        std::copy_n(row + inner + at, count, ups);
        f32x16 up = load(ups);
        gate = select(gate > limit, limit, gate);
        up = select(up > limit, limit, select(up < -limit, -limit, up));
        put(to + at, (up + 1.0f) * (gate * sigmoid(gate * mixture.alpha)), count, false);
    });
}

template <class T>
void square(const Mixture& mixture, const T* row, T* to) {
    each_vector(row, mixture.inner, [&](int64_t at, f32x16 up, int64_t count) {
        up = select(up > 0.0f, up, f32x16{});
        put(to + at, up * up, count, false);
    });
}

// Pairs of a token and one of its experts, in the order of the experts.
struct Pairs {
    const int64_t* starts;  // of each expert's pairs
    const int64_t* order;   // of each place the pair's number: the token's times `each`, and which of its experts it is
    const int64_t* places;  // of each token its pairs' places
};

// `each`: experts of a token.
Pairs in_order(const int64_t* selected, int64_t tokens, int64_t each, int64_t experts) {
    static std::vector<int64_t> memory;
    const int64_t pairs = tokens * each;
    int64_t* starts = at_least(memory, experts + 2 + tokens + 2 * pairs);
    int64_t *found = starts + experts + 2, *order = found + tokens, *places = order + pairs;
    std::fill(starts, order, 0);
    for (int64_t pair = 0; pair < pairs; ++pair) ++starts[selected[pair] + 2];
    for (int64_t expert = 0; expert < experts; ++expert) starts[expert + 2] += starts[expert + 1];
    for (int64_t pair = 0; pair < pairs; ++pair) order[starts[selected[pair] + 1]++] = pair;
    for (int64_t place = 0; place < pairs; ++place) {
        const int64_t token = order[place] / each;
        places[token * each + found[token]++] = place;
    }
    return {starts, order, places};
}

// Call `compute(expert)` for experts from `first` on, up to before `last`, that have pairs. A thread computes a share of an
// expert's product by itself: waiting for all threads after each product would take longer than a product of a few rows.
template <class Compute>
void each_expert(const Pairs& pairs, int64_t first, int64_t last, const Compute& compute) {
    static std::vector<int64_t> memory;
    int64_t *busy = at_least(memory, last - first), count = 0;
    for (int64_t expert = first; expert < last; ++expert)
        if (pairs.starts[expert + 1] > pairs.starts[expert]) busy[count++] = expert;
    const auto compute_busy = [&](int64_t number) { compute(busy[number]); };
    if (count == 1 || team_size() == 1) {
        for (int64_t number = 0; number < count; ++number) compute_busy(number);
    } else {
        in_shares(count, (SHARES * team_size() + count - 1) / count, compute_busy);
    }
}

template <class T>
void mix(const Mixture& mixture, const T* hidden, int64_t tokens, const float* weights, const int64_t* selected,
         int64_t each, float* sums) {
    static std::vector<T> between, ends;
    const int64_t size = mixture.size, inner = mixture.inner;
    const Pairs pairs = in_order(selected, tokens, each, mixture.count);
    std::fill(sums, sums + tokens * size, 0.0f);
    for (int64_t first = 0, last = 0; first < mixture.count; first = last) {
        const int64_t begin = pairs.starts[first];
        do ++last;
        while (last < mixture.count && pairs.starts[last + 1] - begin <= ROWS_AT_ONCE);
        const int64_t count = pairs.starts[last] - begin, width = mixture.experts[first].up.matrix->width;
        if (!count) continue;
        const bool gated = mixture.between == Between::gated;
        T *found = at_least(between, count * (gated ? width : width + inner)), *results = at_least(ends, count * size);
        each_expert(pairs, first, last, [&](int64_t number) {
            static thread_local std::vector<T> gathering;
            const Weights& up = mixture.experts[number].up;
            const int64_t *own = pairs.order + pairs.starts[number], rows = pairs.order + pairs.starts[number + 1] - own;
            const T* x = hidden + own[0] / each * size;
            if (rows > 1) {
                T* to = at_least(gathering, rows * size);
                for (int64_t row = 0; row < rows; ++row) std::copy_n(hidden + own[row] / each * size, size, to + row * size);
                x = to;
            }
            up.multiply(up.matrix, x, rows, found + (pairs.starts[number] - begin) * width, 0);
        });
        if (!gated) {
            T* activated = found + count * width;
            parallel_for(count, [&](int64_t row, int) {
                if (mixture.between == Between::clamped)
                    clamp(mixture, found + row * width, activated + row * inner);
                else
                    square(mixture, found + row * width, activated + row * inner);
            });
            found = activated;
        }
        each_expert(pairs, first, last, [&](int64_t number) {
            const Weights& down = mixture.experts[number].down;
            const int64_t row = pairs.starts[number] - begin, rows = pairs.starts[number + 1] - pairs.starts[number];
            down.multiply(down.matrix, found + row * inner, rows, results + row * size, 0);
        });
        parallel_for(tokens, [&](int64_t token, int) {
            for (const int64_t* place = pairs.places + token * each; place < pairs.places + (token + 1) * each; ++place) {
                if (*place < begin || *place >= begin + count) continue;
                const float weight = weights[pairs.order[*place]];
                float* to = sums + token * size;
                each_vector(results + (*place - begin) * size, size,
                            [&](int64_t at, f32x16 result, int64_t some) { put(to + at, result * weight, some, true); });
            }
        });
    }
}

// `_Routing` in mixture.py has the same fields: see `Routing` in products.py.
struct Routing {
    const float* corrections;  // what is added to scores to select experts, or null
    int64_t experts;
    int64_t each;
    int64_t groups;
    int64_t top_groups;
    int64_t group_top;
    float scale;
    int32_t sigmoid;  // otherwise softmax
    int32_t normalized;
};

// Call `take(number)` with the `most` largest of numbers, the largest first, and of equal ones the first.
template <class Take>
void take_largest(const float* numbers, int64_t count, int64_t most, std::vector<uint8_t>& taken, const Take& take) {
    taken.assign(count, 0);
    for (int64_t turn = 0; turn < std::min(most, count); ++turn) {
        int64_t best = -1;
        for (int64_t at = 0; at < count; ++at)
            if (!taken[at] && (best < 0 || numbers[at] > numbers[best])) best = at;
        taken[best] = 1;
        take(best);
    }
}

// What a thread routes in.
struct Routed {
    std::vector<float> scores, corrected, groups;
    std::vector<uint8_t> taken, open;
};

// Scores of experts from the logits of a token.
void score(const Routing& routing, const float* logits, float* scores) {
    const int64_t experts = routing.experts;
    if (routing.sigmoid)
        return each_vector(logits, experts, [&](int64_t at, f32x16 x, int64_t count) { put(scores + at, sigmoid(x), count, false); });
    const float most = *std::max_element(logits, logits + experts);
    float total = 0;
    each_vector(logits, experts, [&](int64_t at, f32x16 x, int64_t count) {
        put(scores + at, exp(x - most), count, false);
        for (int64_t lane = 0; lane < count; ++lane) total += scores[at + lane];
    });
    for (int64_t at = 0; at < experts; ++at) scores[at] /= total;
}

// Experts of groups that are not among a token's best ones are not selected.
void leave_groups(const Routing& routing, Routed& memory, float* corrected) {
    const int64_t size = routing.experts / routing.groups;
    memory.groups.assign(routing.groups, 0.0f);
    for (int64_t group = 0; group < routing.groups; ++group) {
        const float* own = corrected + group * size;
        take_largest(own, size, routing.group_top, memory.taken, [&](int64_t at) { memory.groups[group] += own[at]; });
    }
    memory.open.assign(routing.groups, 0);
    take_largest(memory.groups.data(), routing.groups, routing.top_groups, memory.taken,
                 [&](int64_t group) { memory.open[group] = 1; });
    for (int64_t at = 0; at < routing.experts; ++at)
        if (!memory.open[at / size]) corrected[at] = -INFINITY;
}

void route(const Routing& routing, const float* logits, Routed& memory, float* weights, int64_t* selected) {
    const int64_t experts = routing.experts;
    float* scores = at_least(memory.scores, experts);
    score(routing, logits, scores);
    float* corrected = at_least(memory.corrected, experts);
    for (int64_t at = 0; at < experts; ++at) corrected[at] = scores[at] + (routing.corrections ? routing.corrections[at] : 0.0f);
    if (routing.groups > 1) leave_groups(routing, memory, corrected);
    float total = 0;
    int64_t number = 0;
    take_largest(corrected, experts, routing.each, memory.taken, [&](int64_t expert) {
        selected[number] = expert;
        total += weights[number++] = scores[expert];
    });
    // A sum of sigmoids may be zero.
    const float factor = routing.normalized ? 1.0f / (total + 1e-20f) : 1.0f;
    for (int64_t at = 0; at < routing.each; ++at) weights[at] *= factor * routing.scale;
}

template <class To, class From>
void add(To* to, const From* from, const float* gate, int64_t size) {
    const f32x16 factor = gate ? sigmoid(splat(*gate)) : splat(1.0f);
    each_vector(from, size, [&](int64_t at, f32x16 numbers, int64_t count) { put(to + at, numbers * factor, count, true); });
}

}  // namespace
}  // namespace quire

// See `Route` in products.py.
EXPORTED void quire_route(const quire::Routing* routing, const float* logits, int64_t tokens, float* weights,
                          int64_t* selected) {
    using namespace quire;
    static std::vector<Routed> memory(MAX_THREADS);
    parallel_for(tokens, [&](int64_t token, int thread) {
        route(*routing, logits + token * routing->experts, memory[thread], weights + token * routing->each,
              selected + token * routing->each);
    });
}
PLAYABLE(quire_route)

// See `Kernels.add`. `gates`: of each token, or null.
EXPORTED void quire_add(int to_type, int type, int64_t tokens, int64_t size, void* to, const void* numbers,
                        const float* gates) {
    using namespace quire;
    const auto every = [&](auto* to, const auto* from) {
        parallel_for(tokens, [&](int64_t token, int) {
            add(to + token * size, from + token * size, gates ? gates + token : nullptr, size);
        });
    };
    const auto from_any = [&](auto* to) {
        type == 1 ? every(to, static_cast<const bf16*>(numbers)) : every(to, static_cast<const float*>(numbers));
    };
    to_type == 1 ? from_any(static_cast<bf16*>(to)) : from_any(static_cast<float*>(to));
}
PLAYABLE(quire_add)

// See `Mixture` in products.py; the experts of a token are distinct, so each row of sums has one writer at a time.
EXPORTED void quire_mixture(const quire::Mixture* mixture, const void* hidden, int64_t tokens, const float* weights,
                            const int64_t* selected, int64_t each, float* sums) {
    using namespace quire;
    if (mixture->type == Type::float32)
        mix(*mixture, static_cast<const float*>(hidden), tokens, weights, selected, each, sums);
    else
        mix(*mixture, static_cast<const bf16*>(hidden), tokens, weights, selected, each, sums);
}
PLAYABLE(quire_mixture)
