// Recurrent layers: convolutions of a few tokens, the gated delta rule, state spaces. See `kernels/recurrence.py`.
//
// A task computes one row's tokens, one after the other, for some channels of a convolution, or for some columns of a
// head's matrix: columns do not depend on each other. So the order of a token's additions depends on nothing else in
// the step.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "activation.h"
#include "tape.h"
#include "team.h"
#include "vmath.h"

namespace quire {
namespace {

// The rows of a step, and the blocks that their states are in.
struct Rows {
    int64_t count;
    const int32_t *starts, *contexts, *tables;
    int64_t blocks, block_size;
    const bool* drafted;  // rows that leave states as they are; null: none does

    int64_t begin(int64_t row) const { return starts[row]; }
    int64_t end(int64_t row) const { return starts[row + 1]; }
    // Position of the row's first token in its sequence.
    int64_t position(int64_t row) const { return contexts[row] - (end(row) - begin(row)); }
    int64_t block(int64_t row, int64_t position) const { return tables[row * blocks + position / block_size]; }
};

// Bring a row's state forward: `begin(block)` reads it from a block, or makes it that of no tokens (block -1), and
// `compute(token, block)` goes on with a token of the step, and writes it to the block, if that is not -1.
template <class Begin, class Compute>
void recur(const Rows& rows, int64_t row, const Begin& begin, const Compute& compute) {
    int64_t at = rows.position(row);
    const bool writes = !(rows.drafted && rows.drafted[row]);
    begin(at ? rows.block(row, at - 1) : -1);
    for (int64_t token = rows.begin(row); token < rows.end(row); ++token, ++at) {
        const bool kept = writes && ((at + 1) % rows.block_size == 0 || token + 1 == rows.end(row));
        compute(token, kept ? rows.block(row, at) : -1);
    }
}

// Up to 16 numbers as float32; zeros behind them.
template <class T>
f32x16 load_some(const T* from, int64_t count) {
    if (count >= LANES) return load(from);
    float numbers[LANES] = {};
    for (int64_t i = 0; i < count; ++i) numbers[i] = to_float(from[i]);
    return load(numbers);
}

template <class T>
void store_some(T* to, f32x16 vector, int64_t count) {
    if (count >= LANES) return store(to, vector);
    for (int64_t i = 0; i < count; ++i) from_float(to + i, vector[i]);
}

constexpr int MOST_TAPS = 8;
constexpr int64_t CHANNELS = 8 * LANES;  // channels of a task

template <class T>
void convolve(const Rows& rows, const T* inputs, int64_t stride, int64_t channels, int64_t taps, const float* weight,
              const float* bias, bool activated, float* states, T* out) {
    const int64_t pieces = (channels + CHANNELS - 1) / CHANNELS, kept = taps - 1;
    parallel_for(rows.count * pieces, [&](int64_t task, int) {
        const int64_t row = task / pieces, last = std::min(channels, (task % pieces + 1) * CHANNELS);
        for (int64_t channel = task % pieces * CHANNELS; channel < last; channel += LANES) {
            const int64_t lanes = std::min<int64_t>(LANES, last - channel);
            f32x16 seen[MOST_TAPS], filter[MOST_TAPS];
            for (int64_t tap = 0; tap < taps; ++tap) filter[tap] = load_some(weight + tap * channels + channel, lanes);
            const f32x16 added = bias ? load_some(bias + channel, lanes) : f32x16{};
            recur(
                rows, row,
                [&](int64_t block) {
                    for (int64_t tap = 0; tap < kept; ++tap)
                        seen[tap] = block < 0 ? f32x16{} : load_some(states + (block * kept + tap) * channels + channel, lanes);
                },
                [&](int64_t token, int64_t block) {
                    seen[kept] = load_some(inputs + token * stride + channel, lanes);
                    f32x16 sums = {};
                    for (int64_t tap = 0; tap < taps; ++tap) sums += seen[tap] * filter[tap];
                    sums += added;
                    store_some(out + token * channels + channel, activated ? activate(Activation::silu, sums) : sums, lanes);
                    for (int64_t tap = 0; tap < kept; ++tap) seen[tap] = seen[tap + 1];
                    for (int64_t tap = 0; block >= 0 && tap < kept; ++tap)
                        store_some(states + (block * kept + tap) * channels + channel, seen[tap], lanes);
                });
        }
    });
}

// A row of `count` numbers as float32, multiplied by `factor` over its length.
template <class T>
void normalized(const T* from, int64_t count, float factor, float* to) {
    float squares = 0;
    f32x16 sums = {};
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        const f32x16 numbers = load(from + i);
        sums += numbers * numbers;
        store(to + i, numbers);
    }
    for (; i < count; ++i) {
        to[i] = to_float(from[i]);
        squares += to[i] * to[i];
    }
    factor /= std::sqrt(sum(sums) + squares + 1e-6f);
    for (i = 0; i < count; ++i) to[i] *= factor;
}

// What is left of each row of a matrix, and the key times it: `count` numbers each.
inline void forgotten(const float* forget, const float* bias, float rate, float bound, const float* key, int64_t count,
                      float* kept, float* kept_key) {
    for (int64_t i = 0; i < count; i += LANES) {
        const int64_t lanes = std::min<int64_t>(LANES, count - i);
        const f32x16 numbers = load_some(forget + i, lanes) + load_some(bias + i, lanes);
        const f32x16 left = exp(bound != 0 ? bound * sigmoid(-rate * numbers) : rate * softplus(numbers));
        store_some(kept + i, left, lanes);
        store_some(kept_key + i, left * load_some(key + i, lanes), lanes);
    }
}

constexpr int64_t WIDTH = 2;              // vectors of a task's columns
constexpr int64_t COLUMNS = WIDTH * LANES;  // its columns

// Where a task's columns of a matrix are: rows of COLUMNS numbers, `stride` numbers apart.
struct Matrix {
    float* numbers;
    int64_t stride;

    float* row(int64_t i) const { return numbers + i * stride; }
};

// One token: `to`, which may be where `from` is, becomes kept(i) * from[i] + key[i] change^T row by row, and `change` becomes
// to^T query. Matrices have `key_size` rows.
template <class Kept>
inline __attribute__((always_inline)) void add_outer(const Matrix& from, const Matrix& to, int64_t key_size, const float* query,
                                                     const float* key, const Kept& kept, f32x16 (&change)[WIDTH]) {
    f32x16 results[2][WIDTH] = {};  // of even and odd rows
    const auto move = [&](int64_t i, f32x16(&result)[WIDTH]) {
        for (int64_t w = 0; w < WIDTH; ++w) {
            const f32x16 moved = load(from.row(i) + w * LANES) * kept(i) + change[w] * key[i];
            store(to.row(i) + w * LANES, moved);
            result[w] += moved * query[i];
        }
    };
    int64_t i = 0;
    for (; i + 2 <= key_size; i += 2) {
        move(i, results[0]);
        move(i + 1, results[1]);
    }
    if (i < key_size) move(i, results[0]);
    for (int64_t w = 0; w < WIDTH; ++w) change[w] = results[0][w] + results[1][w];
}

// What a token has for a matrix: `kept` is what is left of all rows, or of each row. Then `kept_key` is the key times it.
struct Token {
    const float *query, *key, *kept, *kept_key;
    float update;
};

// One token of the delta rule. `value`: the task's columns of the token's value; the result takes their place.
template <bool by_row>
inline __attribute__((always_inline)) void apply(const Matrix& from, const Matrix& to, int64_t key_size, const Token& token,
                                                 f32x16 (&value)[WIDTH]) {
    const float *const query = token.query, *const key = token.key, *const seen = by_row ? token.kept_key : key;
    const float of_all = token.kept[0], update = token.update;
    const auto kept = [&](int64_t i) { return by_row ? token.kept[i] : of_all; };
    f32x16 sums[2][WIDTH] = {};  // of even and odd rows
    const auto add = [&](int64_t i, f32x16(&sum)[WIDTH]) {
        for (int64_t w = 0; w < WIDTH; ++w) sum[w] += load(from.row(i) + w * LANES) * seen[i];
    };
    int64_t i = 0;
    for (; i + 2 <= key_size; i += 2) {
        add(i, sums[0]);
        add(i + 1, sums[1]);
    }
    if (i < key_size) add(i, sums[0]);
    for (int64_t w = 0; w < WIDTH; ++w) value[w] = (value[w] - (sums[0][w] + sums[1][w]) * (by_row ? 1.0f : of_all)) * update;
    add_outer(from, to, key_size, query, key, kept, value);
}

struct Sizes {
    int64_t key_heads, heads, key_size, value_size;
    bool tiled;
    float update_scale, bound;

    int64_t key_head(int64_t head) const { return tiled ? head % key_heads : head / (heads / key_heads); }
};

inline float softplus_of(float x) { return x > 20 ? x : std::log1p(std::exp(x)); }

// A task's columns of a head's matrix.
struct Columns {
    int64_t head, first, count;            // `count`: at most COLUMNS
    float *query, *key, *kept, *kept_key;  // memory for those of a token
};

// Bring the matrices of all rows and heads forward: `compute(columns, token, from, to)` goes on with a token of the step,
// whose columns before it are in `from`, and leaves those after it in `to`.
template <class Compute>
void recur_matrices(const Rows& rows, const Sizes& sizes, float* states, const Compute& compute) {
    const int64_t pieces = (sizes.value_size + COLUMNS - 1) / COLUMNS;
    parallel_for(rows.count * sizes.heads * pieces, [&](int64_t task, int) {
        thread_local std::vector<float> memory;
        memory.resize((COLUMNS + 4) * sizes.key_size + LANES);
        float* const aligned = memory.data() + LANES - (reinterpret_cast<uintptr_t>(memory.data()) / sizeof(float)) % LANES;
        float *const query = aligned + COLUMNS * sizes.key_size, *const key = query + sizes.key_size;
        float *const kept = key + sizes.key_size, *const kept_key = kept + sizes.key_size;
        const Matrix own{aligned, COLUMNS};
        const int64_t first = task % pieces * COLUMNS, count = std::min(COLUMNS, sizes.value_size - first);
        const int64_t head = task / pieces % sizes.heads, row = task / pieces / sizes.heads;
        const Columns columns{head, first, count, query, key, kept, kept_key};
        // A block's matrix is read and written where it is, unless the task has fewer columns than it computes.
        const bool whole = count == COLUMNS;
        const auto in_block = [&](int64_t block) {
            return Matrix{states + (block * sizes.heads + head) * sizes.key_size * sizes.value_size + first, sizes.value_size};
        };
        const auto copy = [&](const Matrix& from, const Matrix& to) {
            for (int64_t i = 0; i < sizes.key_size; ++i) std::memcpy(to.row(i), from.row(i), count * sizeof(float));
        };
        Matrix from = own;
        recur(
            rows, row,
            [&](int64_t block) {
                if (block < 0 || !whole) std::fill_n(aligned, COLUMNS * sizes.key_size, 0.0f);
                if (block >= 0 && whole)
                    from = in_block(block);
                else if (block >= 0)
                    copy(in_block(block), own);
            },
            [&](int64_t token, int64_t block) {
                const Matrix to = block >= 0 && whole ? in_block(block) : own;
                compute(columns, token, from, to);
                if (block >= 0 && !whole) copy(own, in_block(block));
                from = to;
            });
    });
}

template <class T, bool by_row>
void delta_rule(const Rows& rows, const Sizes& sizes, const T* qkv, const float* gates, const float* rate, const float* bias,
                float* states, T* out) {
    const int64_t queries = sizes.key_heads * sizes.key_size, values = sizes.heads * sizes.value_size;
    const int64_t stride = 2 * queries + values, decays = by_row ? sizes.key_size : 1;  // decays of a head
    const float factor = 1.0f / std::sqrt(float(sizes.key_size));
    recur_matrices(rows, sizes, states, [&](const Columns& columns, int64_t token, const Matrix& from, const Matrix& to) {
        const int64_t head = columns.head, key_head = sizes.key_head(head);
        const T* numbers = qkv + token * stride;
        normalized(numbers + key_head * sizes.key_size, sizes.key_size, factor, columns.query);
        normalized(numbers + queries + key_head * sizes.key_size, sizes.key_size, 1.0f, columns.key);
        const float *gate = gates + token * (1 + decays) * sizes.heads, *forget = gate + sizes.heads + head * decays;
        if constexpr (by_row) {
            forgotten(forget, bias + head * decays, rate[head], sizes.bound, columns.key, decays, columns.kept, columns.kept_key);
        } else {
            const float number = forget[0] + bias[head];
            columns.kept[0] = std::exp(sizes.bound != 0 ? sizes.bound / (1.0f + std::exp(rate[head] * number))
                                                        : rate[head] * softplus_of(number));
        }
        const float update = sizes.update_scale / (1.0f + std::exp(-gate[head]));
        const int64_t at = head * sizes.value_size + columns.first;
        f32x16 value[WIDTH];
        for (int64_t w = 0; w < WIDTH; ++w)
            value[w] = load_some(numbers + 2 * queries + at + w * LANES, columns.count - w * LANES);
        const Token own{columns.query, columns.key, columns.kept, columns.kept_key, update};
        apply<by_row>(from, to, sizes.key_size, own, value);
        for (int64_t w = 0; w < WIDTH; ++w)
            store_some(out + token * values + at + w * LANES, value[w], columns.count - w * LANES);
    });
}

// Weights of each head, and bounds of steps.
struct Space {
    const float *rate, *bias, *skip;
    float shortest, longest;
};

template <class T>
void state_space(const Rows& rows, const Sizes& sizes, const Space& space, const T* inputs, const float* steps, float* states,
                 T* out) {
    const int64_t keys = sizes.key_heads * sizes.key_size, values = sizes.heads * sizes.value_size;
    const int64_t stride = 2 * keys + values;
    recur_matrices(rows, sizes, states, [&](const Columns& columns, int64_t token, const Matrix& from, const Matrix& to) {
        const int64_t head = columns.head, at = head * sizes.value_size + columns.first;
        const T *numbers = inputs + token * stride, *key = numbers + values + sizes.key_head(head) * sizes.key_size;
        for (int64_t i = 0; i < sizes.key_size; i += LANES) {
            store_some(columns.key + i, load_some(key + i, sizes.key_size - i), sizes.key_size - i);
            store_some(columns.query + i, load_some(key + keys + i, sizes.key_size - i), sizes.key_size - i);
        }
        const float found = softplus_of(steps[token * sizes.heads + head] + space.bias[head]);
        const float step = std::min(std::max(found, space.shortest), space.longest);
        f32x16 given[WIDTH], value[WIDTH];
        for (int64_t w = 0; w < WIDTH; ++w) {
            given[w] = load_some(numbers + at + w * LANES, columns.count - w * LANES);
            value[w] = given[w] * step;
        }
        const float kept = std::exp(space.rate[head] * step);
        add_outer(from, to, sizes.key_size, columns.query, columns.key, [&](int64_t) { return kept; }, value);
        for (int64_t w = 0; w < WIDTH; ++w) {
            const f32x16 result = value[w] + given[w] * space.skip[head];
            store_some(out + token * values + at + w * LANES, result, columns.count - w * LANES);
        }
    });
}

}  // namespace
}  // namespace quire

using namespace quire;

// `dtype`: 0 float32, 1 bfloat16. `starts` [rows + 1] and `contexts` [rows] are as in `StepMetadata`, `tables` [rows,
// blocks]. `drafted` [rows]: see `Rows`.

// `stride`: numbers between two tokens' inputs. `weight` [taps, channels], `states` [num_blocks, taps - 1, channels].
EXPORTED void quire_convolve(int dtype, int64_t count, const int32_t* starts, const int32_t* contexts, const int32_t* tables,
                             int64_t blocks, int64_t block_size, const bool* drafted, const void* inputs, int64_t stride,
                             int64_t channels, int64_t taps, const float* weight, const float* bias, int activated,
                             float* states, void* out) {
    const Rows rows{count, starts, contexts, tables, blocks, block_size, drafted};
    if (dtype == 1)
        convolve(rows, (const bf16*)inputs, stride, channels, taps, weight, bias, activated, states, (bf16*)out);
    else
        convolve(rows, (const float*)inputs, stride, channels, taps, weight, bias, activated, states, (float*)out);
}
PLAYABLE(quire_convolve)

// See `StepRecurrence.delta_rule`; `states` [num_blocks, heads, key_size, value_size]. `by_row`: each row of a matrix has
// a decay of its own.
EXPORTED void quire_delta_rule(int dtype, int64_t count, const int32_t* starts, const int32_t* contexts,
                               const int32_t* tables, int64_t blocks, int64_t block_size, const bool* drafted,
                               int64_t key_heads, int64_t heads, int64_t key_size, int64_t value_size, int tiled, int by_row,
                               float update_scale, float bound, const void* qkv, const float* gates, const float* rate,
                               const float* bias, float* states, void* out) {
    const Rows rows{count, starts, contexts, tables, blocks, block_size, drafted};
    const Sizes sizes{key_heads, heads, key_size, value_size, tiled != 0, update_scale, bound};
    const auto compute = [&](auto number, auto by_row) {
        using T = decltype(number);
        delta_rule<T, by_row.value>(rows, sizes, (const T*)qkv, gates, rate, bias, states, (T*)out);
    };
    if (dtype == 1)
        by_row ? compute(bf16{}, std::true_type{}) : compute(bf16{}, std::false_type{});
    else
        by_row ? compute(float{}, std::true_type{}) : compute(float{}, std::false_type{});
}
PLAYABLE(quire_delta_rule)

// See `StepRecurrence.state_space`; `states` as above, with a group's B as the key and C as the query.
EXPORTED void quire_state_space(int dtype, int64_t count, const int32_t* starts, const int32_t* contexts,
                                const int32_t* tables, int64_t blocks, int64_t block_size, const bool* drafted,
                                int64_t groups, int64_t heads, int64_t key_size, int64_t value_size, const void* inputs,
                                const float* steps, const float* rate, const float* bias, const float* skip, float shortest,
                                float longest, float* states, void* out) {
    const Rows rows{count, starts, contexts, tables, blocks, block_size, drafted};
    const Sizes sizes{groups, heads, key_size, value_size, false, 1, 0};
    const Space space{rate, bias, skip, shortest, longest};
    if (dtype == 1)
        state_space(rows, sizes, space, (const bf16*)inputs, steps, states, (bf16*)out);
    else
        state_space(rows, sizes, space, (const float*)inputs, steps, states, (float*)out);
}
PLAYABLE(quire_state_space)
