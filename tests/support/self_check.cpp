// The CPU kernels beside plain loops, for machines on which Python's tests do not run: compiled together with the
// kernels' sources, for any processor. Prints a line for each check, and ends with the number of checks that failed.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "codes.h"
#include "matrix.h"
#include "pages.h"

extern "C" {
void quire_linear_pack(const quire::Matrix*, const uint8_t*, uint32_t*);
void quire_linear_rows(const quire::Matrix*, const int64_t*, int64_t, uint8_t*);
void quire_linear(const quire::Matrix*, const void*, int64_t, void*, int);
void quire_quantized_pack(const quire::Matrix*, const void*, const float*, uint32_t*, float*, int32_t*);
void quire_quantized_rows(const quire::Matrix*, const int64_t*, int64_t, void*);
void quire_quantized(const quire::Matrix*, const void*, int64_t, void*, int);
void quire_int4_pack(const quire::Matrix*, const void*, const uint16_t*, const float*, uint32_t*, uint16_t*);
void quire_int4_rows(const quire::Matrix*, const int64_t*, int64_t, void*);
void quire_int4(const quire::Matrix*, const void*, int64_t, void*, int);
void quire_coded_pack(const quire::Matrix*, const uint8_t*, uint32_t*);
void quire_coded_rows(const quire::Matrix*, const int64_t*, int64_t, void*);
void quire_coded(const quire::Matrix*, const void*, int64_t, void*, int);
void quire_norm(int, int, const void*, const void*, float, int64_t, int64_t, void*);
void quire_rotate_and_write(int, int, const void*, int64_t, const int64_t*, const int64_t*, const float*, const float*,
                            int64_t, int64_t, int64_t, int64_t, void*, void*, void*, float*, float*);
void quire_attend(int, int, int64_t, const int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, int64_t, int64_t,
                  int64_t, int64_t, float, float, int64_t, int64_t, int64_t, const float*, const float*, const void*, const void*,
                  const void*, const float*, const float*, void*);
void quire_convolve(int, int64_t, const int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, const bool*,
                    const void*, int64_t, int64_t, int64_t, const float*, const float*, int, float*, void*);
void quire_delta_rule(int, int64_t, const int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, const bool*, int64_t,
                      int64_t, int64_t, int64_t, int, int, float, float, const void*, const float*, const float*, const float*,
                      float*, void*);
void quire_state_space(int, int64_t, const int32_t*, const int32_t*, const int32_t*, int64_t, int64_t, const bool*, int64_t,
                       int64_t, int64_t, int64_t, const void*, const float*, const float*, const float*, const float*, float, float,
                       float*, void*);
void quire_sample(const float*, int, int, const int32_t*, const int32_t*, const uint8_t*, const void*, const void*,
                  const int32_t*, int64_t, const int32_t*, const uint32_t*, int64_t, const int32_t*, const int32_t*,
                  const float*, int64_t*, float*);
int quire_start(int, const int*);
}

using namespace quire;

namespace {

int failed = 0;

void check(const std::string& name, double error, double most) {
    const bool holds = error <= most;  // false for NaN
    failed += !holds;
    std::printf("%s %s: off by %.3g, at most %.3g\n", holds ? "ok  " : "FAIL", name.c_str(), error, most);
}

// Numbers in [-1, 1), the same on every machine.
float number() {
    static uint64_t state = 1;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return float(int32_t(state >> 40) - (1 << 23)) / float(1 << 23);
}

template <class T>
std::vector<T> numbers(int64_t count) {
    std::vector<T> found(count);
    for (T& each : found) from_float(&each, number());
    return found;
}

template <class T>
constexpr Type TYPE = std::is_same_v<T, float> ? Type::float32 : Type::bfloat16;
template <class T>
constexpr double ROUNDING = std::is_same_v<T, float> ? 1e-5 : 1e-2;
template <class T>
std::string name_of() {
    return std::is_same_v<T, float> ? "float32" : "bfloat16";
}

double silu(double x) { return x / (1 + std::exp(-x)); }

// Largest error of y [rows, width] of the product of x [rows, in] and the weights [width or 2 * width, in].
template <class T>
double product_error(const Matrix& matrix, const std::vector<T>& x, const std::vector<double>& weights, int64_t rows,
                     const std::vector<T>& y, const std::vector<T>& added) {
    double worst = 0;
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t column = 0; column < matrix.width; ++column) {
            const auto dot = [&](int64_t output) {
                double total = 0;
                for (int64_t k = 0; k < matrix.in; ++k)
                    total += double(to_float(x[row * matrix.in + k])) * weights[output * matrix.in + k];
                return total;
            };
            double expected = matrix.gated() ? silu(dot(column)) * dot(column + matrix.width) : dot(column);
            const int64_t place = row * matrix.width + column;
            if (!added.empty()) expected += to_float(added[place]);
            worst = std::max(worst, std::abs(to_float(y[place]) - expected) / (1 + std::abs(expected)));
        }
    return worst;
}

enum class Form { plain, int8, int4 };

// A matrix packed in a form.
template <class T>
struct PackedMatrix {
    Matrix matrix;
    std::vector<uint32_t> panels;
    std::vector<float> scales;
    std::vector<int32_t> corrections;

    PackedMatrix(Form form, const std::vector<T>& given, Activation activation, int64_t in, int64_t width)
        : matrix{nullptr, nullptr, nullptr, nullptr, in, width, TYPE<T>, activation, 0, nullptr, 0} {
        const int64_t columns = matrix.count() * COLUMNS;
        panels.resize(columns * (in + 64));
        scales.resize(columns);
        corrections.resize(columns);
        matrix.panels = panels.data();
        if (form == Form::int8) {
            matrix.rotates = 1;
            matrix.scales = scales.data();
            matrix.corrections = corrections.data();
            quire_quantized_pack(&matrix, given.data(), nullptr, panels.data(), scales.data(), corrections.data());
        } else if (form == Form::int4) {
            quire_int4_pack(&matrix, given.data(), nullptr, nullptr, panels.data(), nullptr);
        } else {
            quire_linear_pack(&matrix, (const uint8_t*)given.data(), panels.data());
        }
    }
};

// Weights as a form keeps them: [outputs, in].
template <class T>
std::vector<double> kept(Form form, const std::vector<T>& given, int64_t in, int64_t outputs) {
    const PackedMatrix<T> packed(form, given, Activation::none, in, outputs);
    std::vector<int64_t> ids(outputs);
    for (int64_t id = 0; id < outputs; ++id) ids[id] = id;
    std::vector<T> rows(outputs * in);
    switch (form) {
        case Form::plain: quire_linear_rows(&packed.matrix, ids.data(), outputs, (uint8_t*)rows.data()); break;
        case Form::int8: quire_quantized_rows(&packed.matrix, ids.data(), outputs, rows.data()); break;
        case Form::int4: quire_int4_rows(&packed.matrix, ids.data(), outputs, rows.data()); break;
    }
    double furthest = 0;
    std::vector<double> weights(outputs * in);
    for (int64_t at = 0; at < outputs * in; ++at) {
        weights[at] = to_float(rows[at]);
        furthest = std::max(furthest, std::abs(weights[at] - to_float(given[at])));
    }
    check(name_of<T>() + " rows of form " + std::to_string(int(form)), furthest,
          form == Form::plain ? 0 : form == Form::int8 ? 0.03 : 0.15);
    return weights;
}

// A product with weights of a form. Its rows alone must be its rows among others, bit by bit.
template <class T>
void check_product(Form form, Activation activation, int64_t in, int64_t width) {
    const bool gated = activation != Activation::none;
    const int64_t outputs = gated ? 2 * width : width;
    const auto given = numbers<T>(outputs * in);
    const PackedMatrix<T> packed(form, given, activation, in, width);
    const Matrix& matrix = packed.matrix;
    const auto weights = kept(form, given, in, outputs);
    const auto multiply = form == Form::plain ? quire_linear : form == Form::int8 ? quire_quantized : quire_int4;
    const double allowed = form == Form::plain ? ROUNDING<T> : 0.2;  // activations have 8 bits
    const std::string name = name_of<T>() + (form == Form::plain ? "" : form == Form::int8 ? " int8" : " int4") +
                             (gated ? " gated" : "") + " " + std::to_string(in) + " to " + std::to_string(width);
    for (int64_t rows : {1, 2, 3, 5, 6, 7, 13, 25}) {
        const auto x = numbers<T>(rows * in);
        const auto residual = numbers<T>(rows * width);
        std::vector<T> y(rows * width), added = residual, alone(width);
        multiply(&matrix, x.data(), rows, y.data(), 0);
        multiply(&matrix, x.data(), rows, added.data(), 1);
        check(name + ", rows " + std::to_string(rows), product_error<T>(matrix, x, weights, rows, y, {}), allowed);
        check(name + ", added", product_error<T>(matrix, x, weights, rows, added, residual), allowed);
        multiply(&matrix, x.data() + (rows - 1) * in, 1, alone.data(), 0);
        check(name + ", a row alone", std::memcmp(alone.data(), &y[(rows - 1) * width], width * sizeof(T)), 0);
    }
}

// The value of a code, by the definition of its kind.
double value_of(const Codes& codes, uint8_t code) {
    switch (codes.kind) {
        case Codes::Kind::int8:
        case Codes::Kind::five:
        case Codes::Kind::six: return int8_t(code);
        case Codes::Kind::whole:
        case Codes::Kind::small:
        case Codes::Kind::table: return codes.table[code];
        case Codes::Kind::fp8: break;
    }
    const int exponent = code >> 3 & 15, fraction = code & 7;
    const double size = exponent ? std::ldexp(8 + fraction, exponent - 10) : std::ldexp(fraction, -9);
    return code & 128 ? -size : size;
}

// A product with codes in groups of `size` inputs, whose last one is shorter.
template <class T>
void check_codes(Codes::Kind kind, int64_t size) {
    using Kind = Codes::Kind;
    constexpr int64_t IN = 75, WIDTH = 40;
    Matrix matrix{nullptr, nullptr, nullptr, nullptr, IN, WIDTH, TYPE<T>, Activation::none, 0, nullptr, 0, nullptr};
    Codes codes{kind, size, IN, {}, {}, nullptr, nullptr, nullptr, {}, {}, 0.5f, 0};
    const bool whole = kind == Kind::whole || kind == Kind::small, small = whole || kind == Kind::table;
    const int first = kind == Kind::six ? -32 : 0, count = small ? 16 : kind == Kind::five ? 32 : kind == Kind::six ? 64 : 256;
    const float largest = kind == Kind::fp8 ? 448 : small ? 8 : count / 2;
    codes.lowest = kind == Kind::small ? -32 : first;
    for (int at = 0; at < 16; ++at) {
        const int value = kind == Kind::small ? at * 4 - 32 : at * 5 - 40;
        codes.whole[at] = int8_t(value - codes.lowest);
        codes.table[at] = value * (whole ? codes.unit : 0.1f);
    }
    const int64_t groups = codes.groups(IN), columns = matrix.count() * COLUMNS;
    std::vector<uint16_t> halves(columns * groups);
    std::vector<float> shifts(columns * groups);
    for (auto& each : halves) each = to_half((number() + 2) / largest / 8);
    for (auto& each : shifts) each = number() / 8;
    codes.scales.halves = halves.data(), codes.shifts.floats = shifts.data(), matrix.codes = &codes;
    std::vector<uint8_t> given(WIDTH * IN);
    std::vector<double> weights(WIDTH * IN);
    for (int64_t at = 0; at < WIDTH * IN; ++at) {
        given[at] = uint8_t((int(128 + 128 * number()) & (count - 1)) + first);
        if (kind == Kind::fp8 && (given[at] & 127) == 127) given[at] = 0;
        const int64_t row = at / IN, place = (row / COLUMNS * groups + at % IN / size) * COLUMNS + row % COLUMNS;
        weights[at] = value_of(codes, given[at]) * from_half(halves[place]) + shifts[place];
    }
    std::vector<uint32_t> panels(columns * IN);
    matrix.panels = panels.data();
    quire_coded_pack(&matrix, given.data(), panels.data());
    const std::string name = name_of<T>() + " codes " + std::to_string(int(kind)) + " in groups of " + std::to_string(size);
    std::vector<int64_t> ids(WIDTH);
    for (int64_t id = 0; id < WIDTH; ++id) ids[id] = id;
    std::vector<T> found(WIDTH * IN);
    quire_coded_rows(&matrix, ids.data(), WIDTH, found.data());
    double furthest = 0;
    for (int64_t at = 0; at < WIDTH * IN; ++at) furthest = std::max(furthest, std::abs(to_float(found[at]) - weights[at]));
    check(name + ", rows of the matrix", furthest, ROUNDING<T>);
    const bool rounds = kind != Kind::fp8 && kind != Kind::table;
    for (int64_t rows : {1, 2, 3, 5, 7, 13}) {
        const auto x = numbers<T>(rows * IN);
        std::vector<T> y(rows * WIDTH), alone(WIDTH);
        quire_coded(&matrix, x.data(), rows, y.data(), 0);
        check(name + ", rows " + std::to_string(rows), product_error<T>(matrix, x, weights, rows, y, {}), rounds ? 0.2 : ROUNDING<T>);
        quire_coded(&matrix, x.data() + (rows - 1) * IN, 1, alone.data(), 0);
        check(name + ", a row alone", std::memcmp(alone.data(), &y[(rows - 1) * WIDTH], WIDTH * sizeof(T)), 0);
    }
}

// A context in pages, and its last `count` tokens over it.
template <class T>
void check_attention(int page_type, int64_t block_size, int64_t context, int64_t count, int64_t window) {
    constexpr int64_t HEADS = 4, KV_HEADS = 2, DIM = 32;
    const int64_t blocks = (context + block_size - 1) / block_size, width = (HEADS + 2 * KV_HEADS) * DIM;
    const auto qkv = numbers<T>(context * width);
    std::vector<int32_t> table(blocks);
    for (int64_t block = 0; block < blocks; ++block) table[block] = int32_t(blocks - 1 - block);
    std::vector<int64_t> positions(context), entries(context);
    for (int64_t at = 0; at < context; ++at) {
        positions[at] = at;
        entries[at] = table[at / block_size] * block_size + at % block_size;
    }
    const std::vector<float> cos(context * DIM / 2, 1.0f), sin(context * DIM / 2, 0.0f);
    const int64_t size = blocks * block_size * KV_HEADS * DIM;
    std::vector<T> keys(size), values(size), query(context * HEADS * DIM), out(count * HEADS * DIM);
    std::vector<float> key_scales(size / DIM), value_scales(size / DIM);
    quire_rotate_and_write(TYPE<T> == Type::bfloat16, page_type, qkv.data(), context, positions.data(), entries.data(),
                           cos.data(), sin.data(), block_size, HEADS, KV_HEADS, DIM, query.data(), keys.data(),
                           values.data(), key_scales.data(), value_scales.data());
    const int32_t starts[2] = {0, int32_t(count)}, contexts[1] = {int32_t(context)};
    quire_attend(TYPE<T> == Type::bfloat16, page_type, 1, starts, contexts, table.data(), blocks, block_size, HEADS,
                 KV_HEADS, DIM, DIM, 0.25f, 0.0f, window, 0, 0, nullptr, nullptr, query.data() + (context - count) * HEADS * DIM,
                 keys.data(), values.data(), key_scales.data(), value_scales.data(), out.data());
    double worst = 0;
    for (int64_t token = 0; token < count; ++token)
        for (int64_t head = 0; head < HEADS; ++head) {
            const int64_t position = context - count + token, kv_head = head / (HEADS / KV_HEADS);
            const int64_t first = window ? std::max<int64_t>(0, position + 1 - window) : 0;
            const auto at = [&](int64_t token, int64_t part, int64_t d) {
                return double(to_float(qkv[token * width + part * DIM + d]));
            };
            std::vector<double> weights;
            double total = 0;
            for (int64_t seen = first; seen <= position; ++seen) {
                double score = 0;
                for (int64_t d = 0; d < DIM; ++d) score += at(position, head, d) * at(seen, HEADS + kv_head, d);
                weights.push_back(std::exp(score * 0.25));
                total += weights.back();
            }
            for (int64_t d = 0; d < DIM; ++d) {
                double expected = 0;
                for (int64_t seen = first; seen <= position; ++seen)
                    expected += weights[seen - first] / total * at(seen, HEADS + KV_HEADS + kv_head, d);
                worst = std::max(worst, std::abs(to_float(out[(token * HEADS + head) * DIM + d]) - expected));
            }
        }
    check(name_of<T>() + (page_type == INT8 ? " attention, pages of int8" : " attention") + ", blocks of " +
              std::to_string(block_size) + ", " + std::to_string(count) + " of " + std::to_string(context) +
              (window ? ", window" : ""),
          worst, page_type == INT8 ? 2e-2 : ROUNDING<T>);
}

template <class T>
void check_norm(int64_t size) {
    constexpr int64_t TOKENS = 3;
    const auto x = numbers<T>(TOKENS * size), weight = numbers<T>(size);
    std::vector<T> y(TOKENS * size);
    quire_norm(TYPE<T> == Type::bfloat16, 0, x.data(), weight.data(), 1e-5f, TOKENS, size, y.data());
    double worst = 0;
    for (int64_t token = 0; token < TOKENS; ++token) {
        double squares = 0;
        for (int64_t d = 0; d < size; ++d) squares += std::pow(to_float(x[token * size + d]), 2);
        for (int64_t d = 0; d < size; ++d) {
            const double expected = to_float(x[token * size + d]) / std::sqrt(squares / size + 1e-5) * to_float(weight[d]);
            worst = std::max(worst, std::abs(to_float(y[token * size + d]) - expected));
        }
    }
    check(name_of<T>() + " norm of " + std::to_string(size), worst, 2 * ROUNDING<T>);
}

// A text in two steps, with blocks of two tokens: a convolution of its numbers, the delta rule of one head, whose rows are
// forgotten together or each by itself, and a state space of one head.
template <class T>
void check_recurrence(int64_t key_size, int64_t value_size, bool by_row, float scale, float bound) {
    constexpr int64_t TOKENS = 5, BLOCKS = 3, TAPS = 3;
    const int32_t tables[BLOCKS] = {2, 0, 1};
    const int64_t width = 2 * key_size + value_size, decays = by_row ? key_size : 1;
    const auto inputs = numbers<T>(TOKENS * width);
    const auto weight = numbers<float>(TAPS * width), gates = numbers<float>((1 + decays) * TOKENS);
    const auto bias = numbers<float>(decays);
    const float rate = -0.7f, skip = 0.4f, longest = 0.9f;
    std::vector<float> latest(BLOCKS * (TAPS - 1) * width), matrices(BLOCKS * key_size * value_size), states(matrices);
    std::vector<T> out(TOKENS * width), results(TOKENS * value_size), scanned(results);
    for (int32_t begin = 0, end = 3; begin < TOKENS; begin = end, end = TOKENS) {
        const int32_t starts[] = {0, end - begin};
        const T* from = inputs.data() + begin * width;
        quire_convolve(TYPE<T> == Type::bfloat16, 1, starts, &end, tables, BLOCKS, 2, nullptr, from, width, width, TAPS,
                       weight.data(), nullptr, 0, latest.data(), out.data() + begin * width);
        quire_delta_rule(TYPE<T> == Type::bfloat16, 1, starts, &end, tables, BLOCKS, 2, nullptr, 1, 1, key_size,
                         value_size, 0, by_row, scale, bound, from, gates.data() + (1 + decays) * begin, &rate, bias.data(), matrices.data(),
                         results.data() + begin * value_size);
        quire_state_space(TYPE<T> == Type::bfloat16, 1, starts, &end, tables, BLOCKS, 2, nullptr, 1, 1, key_size,
                          value_size, from, gates.data() + begin, &rate, bias.data(), &skip, 0, longest, states.data(),
                          scanned.data() + begin * value_size);
    }
    double convolved = 0, changed = 0, added = 0;
    std::vector<double> matrix(key_size * value_size), state(matrix);
    for (int64_t token = 0; token < TOKENS; ++token) {
        const T *query = inputs.data() + token * width, *key = query + key_size, *value = key + key_size;
        for (int64_t channel = 0; channel < width; ++channel) {
            double expected = 0;
            for (int64_t tap = std::max<int64_t>(0, TAPS - 1 - token); tap < TAPS; ++tap)
                expected += double(weight[tap * width + channel]) * to_float(inputs[(token + tap - TAPS + 1) * width + channel]);
            convolved = std::max(convolved, std::abs(to_float(out[token * width + channel]) - expected));
        }
        double queries = 1e-6, keys = 1e-6;
        for (int64_t i = 0; i < key_size; ++i) {
            queries += std::pow(to_float(query[i]), 2);
            keys += std::pow(to_float(key[i]), 2);
        }
        const float* gate = gates.data() + (1 + decays) * token;
        std::vector<double> kept(key_size);
        for (int64_t i = 0; i < key_size; ++i) {
            const double number = gate[1 + i % decays] + bias[i % decays];
            kept[i] = std::exp(bound ? bound / (1 + std::exp(rate * number)) : rate * std::log1p(std::exp(number)));
        }
        const double update = scale / (1 + std::exp(-double(gate[0])));
        for (int64_t column = 0; column < value_size; ++column) {
            double missing = to_float(value[column]), expected = 0;
            for (int64_t i = 0; i < key_size; ++i)
                missing -= kept[i] * matrix[i * value_size + column] * to_float(key[i]) / std::sqrt(keys);
            for (int64_t i = 0; i < key_size; ++i) {
                double& number = matrix[i * value_size + column];
                number = kept[i] * number + update * missing * to_float(key[i]) / std::sqrt(keys);
                expected += number * to_float(query[i]) / std::sqrt(queries * key_size);
            }
            changed = std::max(changed, std::abs(to_float(results[token * value_size + column]) - expected));
        }
        // The same numbers are x, B and C, in this order.
        const double step = std::min<double>(std::log1p(std::exp(gates[token] + bias[0])), longest);
        for (int64_t column = 0; column < value_size; ++column) {
            double expected = skip * to_float(query[column]);
            for (int64_t i = 0; i < key_size; ++i) {
                double& number = state[i * value_size + column];
                number = std::exp(rate * step) * number + step * to_float(query[column]) * to_float(query[value_size + i]);
                expected += number * to_float(query[value_size + key_size + i]);
            }
            const double error = std::abs(to_float(scanned[token * value_size + column]) - expected);
            added = std::max(added, error / std::max(1.0, std::abs(expected)));
        }
    }
    check(name_of<T>() + " convolution of " + std::to_string(width), convolved, ROUNDING<T>);
    check(name_of<T>() + (by_row ? " delta rule by row of " : " delta rule of ") + std::to_string(key_size), changed,
          ROUNDING<T>);
    check(name_of<T>() + " state space of " + std::to_string(key_size), added, ROUNDING<T>);
}

// Greedy rows, and rows that draw among one token: both are the greatest logit.
void check_sampling(int vocabulary) {
    constexpr int ROWS = 2;
    struct {
        float temperature = 1, top_p = 1, min_p = 0, presence = 0, frequency = 0, repetition = 1, top_n_sigma = 0,
              typical_p = 1, xtc_probability = 0, xtc_threshold = 0.1f;
    } floats[ROWS];
    struct {
        int64_t top_k = 1, seed = 7, sequence = 0, prompt = 0, dropped = 0;
    } integers[ROWS];
    const auto logits = numbers<float>(ROWS * vocabulary);
    const int32_t slots[ROWS] = {0, 1}, positions[ROWS] = {3, 4}, tokens[ROWS] = {0, 0};
    const uint8_t flags[ROWS] = {0, 3};
    int64_t chosen[ROWS];
    float best[ROWS];
    quire_sample(logits.data(), ROWS, vocabulary, slots, positions, flags, floats, integers, tokens, 1, nullptr, nullptr, 0,
                 nullptr, nullptr, nullptr, chosen, best);
    for (int row = 0; row < ROWS; ++row) {
        const float* own = logits.data() + row * vocabulary;
        const int64_t greatest = std::max_element(own, own + vocabulary) - own;
        check("sampling of " + std::to_string(vocabulary), std::abs(double(chosen[row] - greatest)) + std::abs(best[row] - own[greatest]), 0);
    }
}

template <class T>
void check_all() {
    for (Form form : {Form::plain, Form::int8, Form::int4}) {
        check_product<T>(form, Activation::none, 64, 32);
        check_product<T>(form, Activation::none, 95, 33);
        check_product<T>(form, Activation::silu, 64, 24);
    }
    using Kind = Codes::Kind;
    check_codes<T>(Kind::five, 32);
    for (Kind kind : {Kind::int8, Kind::whole, Kind::fp8, Kind::table, Kind::small, Kind::six}) check_codes<T>(kind, 16);
    for (Kind kind : {Kind::int8, Kind::whole, Kind::fp8, Kind::table, Kind::small}) check_codes<T>(kind, 24);
    for (int64_t block_size : {16, 5})
        for (int page_type : {PLAIN, INT8}) {
            check_attention<T>(page_type, block_size, 300, 1, 0);
            check_attention<T>(page_type, block_size, 80, 17, 0);
            check_attention<T>(page_type, block_size, 80, 17, 20);
        }
    check_norm<T>(64);
    check_norm<T>(45);
    check_recurrence<T>(16, 32, false, 1, 0);
    check_recurrence<T>(21, 45, false, 2, -3);
    check_recurrence<T>(16, 32, true, 1, -3);
    check_recurrence<T>(21, 45, true, 1, 0);
}

}  // namespace

int main() {
    std::setvbuf(stdout, nullptr, _IOLBF, 0);  // after a crash, the last line says where
    quire_start(2, nullptr);
    check_all<float>();
    check_all<bf16>();
    check_sampling(1000);
    return failed != 0;
}
