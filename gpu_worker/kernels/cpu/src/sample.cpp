// Sampling, as kernels/reference/sampling.py defines it. A row computes only what its sequence asks for, in passes
// over its logits. Only scores near the edge of a filter are sorted.
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "exported.h"
#include "team.h"
#include "vmath.h"

namespace quire {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();

enum Flags { DRAWS = 1, FILTERS = 2, PENALTIES = 4, RARE_FILTERS = 8 };

// A slot's rows of the tables in SamplingState. The columns are those of NUMBERS and INTEGERS in
// gpu_worker/kernels/sampling.py, which is checked when the library is loaded.
#define NUMBERS(column)      \
    column(temperature)      \
    column(top_p)            \
    column(min_p)            \
    column(presence_penalty) \
    column(frequency_penalty) \
    column(repetition_penalty) \
    column(top_n_sigma)      \
    column(typical_p)        \
    column(xtc_probability)  \
    column(xtc_threshold)
#define INTEGERS(column)    \
    column(top_k)           \
    column(seed)            \
    column(sequence_index)  \
    column(prompt_length)   \
    column(dropped_tokens)
#define FLOAT(name) float name;
#define INT64(name) int64_t name;
#define NAME(name) #name " "

struct Numbers {
    NUMBERS(FLOAT)
};
struct Integers {
    INTEGERS(INT64)
};

// Scores of one row, padded to whole vectors with -inf.
struct Scores {
    std::vector<float> values;
    int size = 0;

    void assign(const float* from, int count) {
        size = count;
        values.resize((count + LANES - 1) / LANES * LANES);
        std::copy(from, from + count, values.begin());
        std::fill(values.begin() + count, values.end(), -INF);
    }
    int padded() const { return int(values.size()); }
    float* data() { return values.data(); }
};

struct Best {
    float score;
    int token;
};

// The greatest score, and of equal scores the lowest token. NaN is the greatest, as in PyTorch.
Best best_of(const float* scores, int count) {
    f32x16 most = splat(-INF);
    i32x16 at = {};
    const i32x16 lanes = steps();
    int start = 0;
    f32x16 bad = {};
    for (; start + LANES <= count; start += LANES) {
        const f32x16 these = load(scores + start);
        const i32x16 more = these > most;
        most = select(more, these, most);
        at = (more & (lanes + start)) | (~more & at);
        bad += these - these;  // NaN as soon as one is NaN or infinite
    }
    Best best{-INF, 0};
    bool suspicious = sum(bad) != 0;
    for (int lane = 0; lane < LANES; ++lane)
        if (most[lane] > best.score || (most[lane] == best.score && at[lane] < best.token)) best = {most[lane], at[lane]};
    for (; start < count; ++start) {
        if (scores[start] > best.score) best = {scores[start], start};
        suspicious |= !(scores[start] - scores[start] == 0);
    }
    if (suspicious)
        for (int token = 0; token < count; ++token)
            if (scores[token] != scores[token]) return {scores[token], token};
    return best;
}

// Philox4x32-10 (Salmon et al. 2011): the first three words for (position, sequence) under a seed.
void philox(uint32_t position, uint32_t sequence, uint64_t seed, uint32_t words[3]) {
    uint32_t c0 = position, c1 = sequence, c2 = 0, c3 = 0;
    uint32_t k0 = uint32_t(seed), k1 = uint32_t(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t first = uint64_t(c0) * 0xD2511F53u, second = uint64_t(c2) * 0xCD9E8D57u;
        const uint32_t n0 = uint32_t(second >> 32) ^ c1 ^ k0, n2 = uint32_t(first >> 32) ^ c3 ^ k1;
        c1 = uint32_t(second);
        c3 = uint32_t(first);
        c0 = n0;
        c2 = n2;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
}

// Uniform numbers for 16 tokens, multiples of 2^-24 in (0, 1): see kernels/reference/noise.py.
f32x16 uniform(u32x16 tokens, const uint32_t words[2]) {
    u32x16 bits = (tokens * 0x9E3779B1u + words[0]) ^ words[1];
    bits ^= bits >> 16;
    bits *= 0x21F0AAADu;
    bits ^= bits >> 15;
    bits *= 0xD35A2D97u;
    bits ^= bits >> 15;
    return (convert<float>((i32x16)(bits >> 9)) + 0.5f) * 0x1p-23f;
}

f32x16 gumbel(f32x16 uniform) { return -log(-log(1.0f - uniform)); }  // 1 - uniform is exact

// Lower bound of the best score, 0, with its noise: less than -log(-log(2^-24)).
constexpr float LEAST = -2.82f;

// The token with the greatest score + noise. The best score is 0.
//
// Noise is above t only if the uniform number is below 1 - exp(-exp(-t)) < exp(-t). So one exponential excludes most
// tokens, where computing their noise would take two logarithms.
int draw(Scores& scores, const uint32_t words[2]) {
    u32x16 tokens = (u32x16)steps();
    Best best{LEAST, 0};
    for (int start = 0; start < scores.padded(); start += LANES, tokens += LANES) {
        const f32x16 these = load(scores.data() + start);
        const f32x16 chance = uniform(tokens, words);
        const i32x16 possible = chance < exp(these - best.score) * 1.0001f;
        if (!any(possible)) continue;
        const f32x16 noisy = these + gumbel(chance);
        for (int lane = 0; lane < LANES; ++lane)
            if (noisy[lane] > best.score) best = {noisy[lane], start + lane};
    }
    return best.token;
}

// Subtract the best score and divide by the temperature.
void scale(Scores& scores, float temperature) {
    const float best = best_of(scores.data(), scores.size).score;
    for (int start = 0; start < scores.padded(); start += LANES)
        store(scores.data() + start, (load(scores.data() + start) - best) / temperature);
}

// A histogram of scores: bucket b counts scores in (-(b + 1) / FINE, -b / FINE]. Filters go through buckets from the
// best on, and sort only the bucket in which their edge lies.
struct Buckets {
    static constexpr int COUNT = 4096;
    static constexpr float FINE = 64;
    std::vector<int> sizes;
    std::vector<double> masses;

    static int of(float score) { return score > -float(COUNT - 1) / FINE ? int(-score * FINE) : COUNT - 1; }

    void fill(Scores& scores, double least) {
        sizes.assign(COUNT, 0);
        masses.assign(COUNT, 0.0);
        for (int start = 0; start < scores.padded(); start += LANES) {
            const f32x16 these = load(scores.data() + start);
            const f32x16 mass = exp(these);
            for (int lane = 0; lane < LANES; ++lane) {
                if (mass[lane] < least) {
                    scores.data()[start + lane] = -INF;
                } else if (these[lane] > -INF) {
                    const int bucket = of(these[lane]);
                    ++sizes[bucket];
                    masses[bucket] += mass[lane];
                }
            }
        }
    }
};

// Keep tokens up to the edge: tokens with greater scores, and tokens up to `edge_token` with an equal score.
void cut(Scores& scores, float edge, int edge_token) {
    for (int token = 0; token < scores.size; ++token) {
        const float score = scores.data()[token];
        if (score < edge || (score == edge && token > edge_token)) scores.data()[token] = -INF;
    }
}

std::vector<int> ranked(Scores& scores, int bucket) {
    std::vector<int> tokens;
    for (int token = 0; token < scores.size; ++token)
        if (scores.data()[token] > -INF && Buckets::of(scores.data()[token]) == bucket) tokens.push_back(token);
    const float* values = scores.data();
    std::sort(tokens.begin(), tokens.end(), [values](int left, int right) {
        return values[left] != values[right] ? values[left] > values[right] : left < right;
    });
    return tokens;
}

// min-p, then top-k, then top-p (Holtzman et al. 2020). The best score is 0.
void filter(Scores& scores, const Numbers& numbers, int64_t top_k) {
    thread_local Buckets buckets;
    buckets.fill(scores, numbers.min_p);
    if (top_k > 0 && top_k < scores.size) {
        int64_t before = 0;
        int bucket = 0;
        while (bucket < Buckets::COUNT && before + buckets.sizes[bucket] < top_k) before += buckets.sizes[bucket++];
        if (bucket < Buckets::COUNT) {
            const int edge = ranked(scores, bucket)[top_k - before - 1];
            cut(scores, scores.data()[edge], edge);
            buckets.fill(scores, 0.0);
        }
    }
    if (numbers.top_p >= 1) return;
    const double enough = double(numbers.top_p) * std::accumulate(buckets.masses.begin(), buckets.masses.end(), 0.0);
    double before = 0;
    int bucket = 0;
    while (bucket < Buckets::COUNT && before + buckets.masses[bucket] < enough) before += buckets.masses[bucket++];
    if (bucket == Buckets::COUNT) return;
    const std::vector<int> tokens = ranked(scores, bucket);
    int edge = -1;
    for (int token : tokens) {
        if (before >= enough && edge >= 0) break;
        edge = token;
        before += std::exp(double(scores.data()[token]));
    }
    if (edge >= 0) cut(scores, scores.data()[edge], edge);
}

// Top-n-sigma (Tang et al. 2024). The best score is 0. Tokens that are not allowed do not count.
void keep_near_best(Scores& scores, float sigmas) {
    double sum = 0, squares = 0;
    int64_t count = 0;
    const float* values = scores.data();
    for (int token = 0; token < scores.size; ++token)
        if (values[token] > -INF) sum += values[token], ++count;
    const double mean = sum / double(count);
    for (int token = 0; token < scores.size; ++token)
        if (values[token] > -INF) squares += (values[token] - mean) * (values[token] - mean);
    const double edge = -double(sigmas) * std::sqrt(squares / double(count));
    for (int token = 0; token < scores.size; ++token)
        if (values[token] < edge) scores.data()[token] = -INF;
}

// The sum of exp(score), the mass of all tokens.
double mass_of(Scores& scores) {
    double mass = 0;
    for (int token = 0; token < scores.size; ++token) mass += std::exp(double(scores.data()[token]));
    return mass;
}

// Locally typical sampling (Meister et al. 2023).
void keep_typical(Scores& scores, float enough) {
    struct Token {
        double distance, probability;
        int id;
    };
    thread_local std::vector<Token> tokens;
    tokens.clear();
    const double whole = std::log(mass_of(scores));
    double entropy = 0;
    for (int token = 0; token < scores.size; ++token) {
        if (scores.data()[token] == -INF) continue;
        const double log = scores.data()[token] - whole;
        entropy -= log * std::exp(log);
        tokens.push_back({-log, std::exp(log), token});
    }
    for (Token& token : tokens) token.distance = std::abs(token.distance - entropy);
    std::sort(tokens.begin(), tokens.end(), [](const Token& left, const Token& right) {
        return left.distance != right.distance ? left.distance < right.distance : left.id < right.id;
    });
    double mass = 0;
    size_t last = 0;
    while (last < tokens.size() && (mass += tokens[last].probability) < enough) ++last;
    if (last >= tokens.size()) return;
    for (const Token& token : tokens)
        if (token.distance > tokens[last].distance) scores.data()[token.id] = -INF;
}

// Leave out all tokens that are at least this likely, but the last of them.
void exclude_top_choices(Scores& scores, float threshold) {
    thread_local std::vector<int> likely;
    likely.clear();
    const double least = double(threshold) * mass_of(scores);
    float* values = scores.data();
    for (int token = 0; token < scores.size; ++token)
        if (values[token] > -INF && std::exp(double(values[token])) >= least) likely.push_back(token);
    if (likely.empty()) return;
    const int kept = *std::max_element(likely.begin(), likely.end(), [values](int left, int right) {
        return values[left] != values[right] ? values[left] > values[right] : left < right;
    });
    for (int token : likely)
        if (token != kept) values[token] = -INF;
}

// Add a row's biases, see Biases in gpu_worker/kernels/sampling.py.
void add_biases(Scores& scores, const int32_t* tokens, const float* values, int count) {
    for (int entry = 0; entry < count; ++entry) scores.data()[tokens[entry]] += values[entry];
}

// Leave out tokens that are not allowed: those whose bit in the mask is 0.
void keep_allowed(Scores& scores, const uint32_t* mask) {
    for (int token = 0; token < scores.size; ++token)
        if (!(mask[token / 32] >> (token % 32) & 1)) scores.data()[token] = -INF;
}

// Repetition penalty (Keskar et al. 2019) for all `count` tokens; frequency and presence penalty for output tokens.
void penalize(Scores& scores, const Numbers& numbers, const int32_t* tokens, int count, int64_t prompt_length) {
    thread_local std::vector<int> sorted;
    sorted.assign(tokens, tokens + count);
    std::sort(sorted.begin(), sorted.end());
    sorted.erase(std::unique(sorted.begin(), sorted.end()), sorted.end());
    for (int token : sorted) {
        float& score = scores.data()[token];
        score = score > 0 ? score / numbers.repetition_penalty : score * numbers.repetition_penalty;
    }
    sorted.assign(tokens + std::min<int64_t>(prompt_length, count), tokens + count);
    std::sort(sorted.begin(), sorted.end());
    for (size_t first = 0, next; first < sorted.size(); first = next) {
        for (next = first; next < sorted.size() && sorted[next] == sorted[first];) ++next;
        float& score = scores.data()[sorted[first]];
        score = score - float(next - first) * numbers.frequency_penalty - numbers.presence_penalty;
    }
}

}  // namespace
}  // namespace quire

// The names of the columns that the tables of parameters must have, each followed by a space.
EXPORTED const char* quire_sampling_columns() { return NUMBERS(NAME) INTEGERS(NAME); }

// Sample a token for each row of logits [rows, vocabulary]. Row r is for position positions[r] of slot slots[r].
//
// `flags`, `numbers`, `integers`: parameters by slot. `tokens`: [slots, stride], each slot's tokens by position. `masks`
// [rows]: which mask each row has, -1 for none; null if no row has one. `bits` [masks, mask_words]: see Allowed in
// gpu_worker/kernels/sampling.py. `bias_starts` [rows + 1], null if no row has biases; `bias_tokens`, `bias_values`: see
// Biases there. Writes the sampled tokens to `chosen`, and each row's greatest logit to `best`: NaN
// if a logit is NaN.
EXPORTED void quire_sample(const float* logits, int rows, int vocabulary, const int32_t* slots,
                           const int32_t* positions, const uint8_t* flags, const void* numbers,
                           const void* integers, const int32_t* tokens, int64_t stride,
                           const int32_t* masks, const uint32_t* bits, int64_t mask_words,
                           const int32_t* bias_starts, const int32_t* bias_tokens, const float* bias_values,
                           int64_t* chosen, float* best) {
    using namespace quire;
    parallel_for(rows, [&](int64_t row, int) {
        thread_local Scores scores;
        const float* own = logits + row * vocabulary;
        const Best greatest = best_of(own, vocabulary);
        best[row] = greatest.score;
        chosen[row] = greatest.token;
        const int slot = slots[row];
        const uint32_t* mask = masks && masks[row] >= 0 ? bits + masks[row] * mask_words : nullptr;
        const int bias = bias_starts ? bias_starts[row] : 0;
        const int biases = bias_starts ? bias_starts[row + 1] - bias : 0;
        if ((!flags[slot] && !mask && !biases) || !(greatest.score - greatest.score == 0)) return;
        const Numbers& wanted = static_cast<const Numbers*>(numbers)[slot];
        const Integers& counts = static_cast<const Integers*>(integers)[slot];
        scores.assign(own, vocabulary);
        if (biases) add_biases(scores, bias_tokens + bias, bias_values + bias, biases);
        if (mask) keep_allowed(scores, mask);
        if (flags[slot] & PENALTIES)
            penalize(scores, wanted, tokens + slot * stride, positions[row], counts.prompt_length);
        if (flags[slot] & DRAWS) {
            scale(scores, wanted.temperature);
            uint32_t words[3];
            const uint32_t place = uint32_t(positions[row] + counts.dropped_tokens);  // in the whole sequence
            philox(place, uint32_t(counts.sequence_index), uint64_t(counts.seed), words);
            if (wanted.top_n_sigma > 0) keep_near_best(scores, wanted.top_n_sigma);
            if (flags[slot] & FILTERS) filter(scores, wanted, counts.top_k);
            if (wanted.typical_p < 1) keep_typical(scores, wanted.typical_p);
            if (float(words[2] >> 8) * 0x1p-24f < wanted.xtc_probability) exclude_top_choices(scores, wanted.xtc_threshold);
            if (flags[slot] & RARE_FILTERS) scale(scores, 1);  // the best token may have been left out
            chosen[row] = draw(scores, words);
        } else {
            chosen[row] = best_of(scores.data(), vocabulary).token;
        }
    });
}
