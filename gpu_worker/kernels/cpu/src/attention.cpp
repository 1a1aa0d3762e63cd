// Paged attention over a ragged batch: decodes, chunks of prefills and runs of drafts in one call.
//
// Each query head of a token sees its sequence's keys in tiles of 64 positions, aligned, with an online
// softmax (Milakov and Gimelshein 2018), from tile to tile within segments of 512 positions; segments are
// merged in order. A decode's segments are computed side by side, a chunk's tokens share each tile that was
// read: the sums are the same, bit for bit, however the work is cut.
//
//     positions   0      64     128          512                    1024
//     tiles       │──────│──────│── ... ─────│──────│── ...
//     segments    └──────────────────────────┘└─────────────────────┘   each from zero, then merged
#include <algorithm>
#include <limits>
#include <vector>

#include "team.h"
#include "vmath.h"

namespace quire {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr int POSITIONS = 64;  // of a tile
constexpr int64_t SEGMENT = 512;  // positions
constexpr int TOGETHER = 48;  // query heads, over a chunk's tokens, that share what was read

struct Shape {
    int64_t block_size, heads, kv_heads, head_dim;
    int64_t group() const { return heads / kv_heads; }
    // Whole vectors of either type.
    int64_t padded() const { return (head_dim + 31) / 32 * 32; }
};

// What a query sees of its context.
struct Sight {
    float scale, softcap;  // softcap 0: none
    int64_t window, sinks;  // window 0: everything
    int64_t first(int64_t position) const { return window ? std::max<int64_t>(0, position + 1 - window) : 0; }
};

// The softmax of one query head as far as it has got: greatest score, sum of exponentials, and after
// these two the values weighted by them, [head_dim], padded.
struct State {
    float* at;
    float& most() { return at[0]; }
    float& total() { return at[1]; }
    float* values() { return at + LANES; }
    static int64_t size(const Shape& shape) { return LANES + shape.padded(); }
    void clear(const Shape& shape) {
        std::fill(at, at + size(shape), 0.0f);
        most() = -INF;
    }
};

// Sums of 16 vectors, as one.
inline f32x16 sums_of(const f32x16 (&v)[LANES]) {
    f32x16 a[8], b[4], c[2];
    for (int i = 0; i < 8; ++i)
        a[i] = __builtin_shufflevector(v[2 * i], v[2 * i + 1], 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
               __builtin_shufflevector(v[2 * i], v[2 * i + 1], 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
    for (int i = 0; i < 4; ++i)
        b[i] = __builtin_shufflevector(a[2 * i], a[2 * i + 1], 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
               __builtin_shufflevector(a[2 * i], a[2 * i + 1], 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
    for (int i = 0; i < 2; ++i)
        c[i] = __builtin_shufflevector(b[2 * i], b[2 * i + 1], 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
               __builtin_shufflevector(b[2 * i], b[2 * i + 1], 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
    return __builtin_shufflevector(c[0], c[1], 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           __builtin_shufflevector(c[0], c[1], 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

// Add to 16 sums the products of a piece of a query with the same piece of each of 16 keys.
template <int STEP>
inline void dot(f32x16 (&sums)[LANES], const float* query, const float* const* keys, int64_t d) {
    const f32x16 piece = load(query + d);
    for (int i = 0; i < LANES; ++i) sums[i] += load(keys[i] + d) * piece;
}
template <int STEP>
inline void dot(f32x16 (&sums)[LANES], const bf16* query, const bf16* const* keys, int64_t d) {
#if defined(__AVX512BF16__)
    const __m512bh piece = (__m512bh)_mm512_loadu_si512(query + d);
    for (int i = 0; i < LANES; ++i)
        sums[i] = (f32x16)_mm512_dpbf16_ps((__m512)sums[i], (__m512bh)_mm512_loadu_si512(keys[i] + d), piece);
#else
    for (int half = 0; half < 2; ++half) {
        const f32x16 piece = load(query + d + half * LANES);
        for (int i = 0; i < LANES; ++i) sums[i] += load(keys[i] + d + half * LANES) * piece;
    }
#endif
}

template <class T>
constexpr int64_t DOT_STEP = 64 / sizeof(T);

inline f32x16 tanh(f32x16 x) { return 1.0f - 2.0f / (exp(x * 2.0f) + 1.0f); }

// One tile of a sequence's pages, as one key head sees it.
template <class T>
struct Tile {
    const T* keys[POSITIONS];
    const T* values[POSITIONS];
    std::vector<T> copies;  // where rows are no whole vectors

    // Positions `begin` to `end` - 1, `begin` in the tile that starts at `base`; what lies outside is not
    // looked at, and keys outside stand for the nearest within.
    void find(const Shape& shape, const T* key_pages, const T* value_pages, const int32_t* table, int64_t head,
              int64_t base, int64_t begin, int64_t end) {
        const int64_t row = shape.kv_heads * shape.head_dim;
        int64_t block = begin / shape.block_size, offset = begin % shape.block_size;
        for (int64_t position = begin; position < end; ++position) {
            const int64_t entry = (table[block] * shape.block_size + offset) * row + head * shape.head_dim;
            keys[position - base] = key_pages + entry;
            values[position - base] = value_pages + entry;
            if (++offset == shape.block_size) {
                offset = 0;
                ++block;
            }
        }
        if (shape.head_dim % DOT_STEP<T>) copy(shape, begin - base, end - base);
        for (int64_t place = (begin - base) / LANES * LANES; place < begin - base; ++place) keys[place] = keys[begin - base];
        for (int64_t place = end - base; place % LANES; ++place) keys[place] = keys[end - base - 1];
    }

    void copy(const Shape& shape, int64_t begin, int64_t end) {
        const int64_t padded = shape.padded();
        copies.assign(2 * POSITIONS * padded, T{});
        for (int64_t place = begin; place < end; ++place) {
            T* key = copies.data() + 2 * place * padded;
            std::copy(keys[place], keys[place] + shape.head_dim, key);
            std::copy(values[place], values[place] + shape.head_dim, key + padded);
            keys[place] = key;
            values[place] = key + padded;
        }
    }
};

// Weights [HEADS][POSITIONS] times values: added to the states of HEADS heads, WIDTH vectors from `d` on.
template <class T, int HEADS, int WIDTH>
void weigh(const float* weights, const T* const* values, int64_t begin, int64_t end, State* states, int64_t d) {
    f32x16 held[HEADS][WIDTH];
    for (int h = 0; h < HEADS; ++h)
        for (int v = 0; v < WIDTH; ++v) held[h][v] = load(states[h].values() + d + v * LANES);
    for (int64_t place = begin; place < end; ++place) {
        f32x16 value[WIDTH];
        for (int v = 0; v < WIDTH; ++v) value[v] = load(values[place] + d + v * LANES);
        for (int h = 0; h < HEADS; ++h)
            for (int v = 0; v < WIDTH; ++v) held[h][v] += value[v] * weights[h * POSITIONS + place];
    }
    for (int h = 0; h < HEADS; ++h)
        for (int v = 0; v < WIDTH; ++v) store(states[h].values() + d + v * LANES, held[h][v]);
}

template <class T, int HEADS>
void weigh_all(const float* weights, const Tile<T>& tile, int64_t begin, int64_t end, State* states, int64_t padded) {
    int64_t d = 0;
    for (; d + 4 * LANES <= padded; d += 4 * LANES) weigh<T, HEADS, 4>(weights, tile.values, begin, end, states, d);
    for (; d < padded; d += 2 * LANES) weigh<T, HEADS, 2>(weights, tile.values, begin, end, states, d);
}

// One query head and one tile: scores of places `begin` to `end` - 1 into `weights`, as exponentials.
template <class T>
void score(const T* query, const Tile<T>& tile, int64_t begin, int64_t end, const Shape& shape, const Sight& sight,
           State state, float* weights) {
    i32x16 lanes;
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = lane;
    f32x16 most = splat(-INF);
    for (int64_t start = begin / LANES * LANES; start < end; start += LANES) {
        f32x16 sums[LANES] = {};
        for (int64_t d = 0; d < shape.head_dim; d += DOT_STEP<T>) dot<0>(sums, query, tile.keys + start, d);
        f32x16 scores = sums_of(sums) * sight.scale;
        if (sight.softcap > 0) scores = tanh(scores / sight.softcap) * sight.softcap;
        const i32x16 places = lanes + int(start);
        const i32x16 seen = (places >= int(begin)) & (places < int(end));
        scores = select(seen, scores, splat(-INF));
        most = select(scores > most, scores, most);
        store(weights + start, scores);
    }
    const float greatest = std::max(state.most(), maximum(most));
    const float fade = state.most() > -INF ? exp(splat(state.most() - greatest))[0] : 0.0f;
    f32x16 total = {};
    for (int64_t start = begin / LANES * LANES; start < end; start += LANES) {
        const f32x16 weight = exp(load(weights + start) - greatest);
        store(weights + start, weight);
        total += weight;
    }
    state.most() = greatest;
    state.total() = state.total() * fade + sum(total);
    if (fade != 1.0f)
        for (int64_t d = 0; d < shape.padded(); d += LANES)
            store(state.values() + d, load(state.values() + d) * fade);
}

void merge(const Shape& shape, State whole, State segment) {
    const float greatest = std::max(whole.most(), segment.most());
    const float one = exp(splat(whole.most() - greatest))[0], other = exp(splat(segment.most() - greatest))[0];
    whole.total() = whole.total() * one + segment.total() * other;
    for (int64_t d = 0; d < shape.padded(); d += LANES)
        store(whole.values() + d, load(whole.values() + d) * one + load(segment.values() + d) * other);
    whole.most() = greatest;
}

// Everything that a call computes with.
template <class T>
struct Call {
    Shape shape;
    Sight sight;
    const T* query;  // [tokens, heads, head_dim]
    const T* key_pages;
    const T* value_pages;
    T* out;  // as query

    // The queries `first` to `first` + `count` - 1 of one key head, at positions from `position` on, over the part
    // of their context within [from, to), a segment. `states`: one for each query head of each token.
    void segment(const int32_t* table, int64_t first, int64_t count, int64_t position, int64_t head, int64_t from,
                 int64_t to, State* states) const {
        const int64_t group = shape.group(), dim = shape.head_dim, padded = shape.padded();
        thread_local Tile<T> tile;
        thread_local std::vector<float> weights;
        thread_local std::vector<T> copies;
        weights.resize(group * POSITIONS);
        const bool whole = dim % DOT_STEP<T> == 0;
        if (!whole) copy_queries(first, count, head, copies);
        const int64_t earliest = sight.first(position), last = std::min(to, position + count);
        for (int64_t base = from; base < last; base += POSITIONS) {
            const int64_t end = std::min(base + POSITIONS, last);
            // The tokens of a window's start see less than the first of them does; sinks are seen by all.
            const int64_t begin = base < sight.sinks ? base : std::max(base, std::min(earliest, end));
            if (begin >= end) continue;
            if (begin > sight.sinks && end <= earliest) continue;
            tile.find(shape, key_pages, value_pages, table, head, base, begin, end);
            for (int64_t number = 0; number < count; ++number) {
                const int64_t own_end = std::min(end, position + number + 1);
                const T* own = whole ? query + ((first + number) * shape.heads + head * group) * dim
                                     : copies.data() + number * group * padded;
                see(own, whole ? dim : padded, tile, base, begin, own_end, sight.first(position + number), weights.data(),
                    states + number * group);
            }
        }
    }

    // One token's query heads and one tile: sinks first, then what its window shows of it.
    void see(const T* own, int64_t stride, const Tile<T>& tile, int64_t base, int64_t begin, int64_t end, int64_t first,
             float* weights, State* states) const {
        const int64_t sinks = std::min(end, sight.sinks), shown = std::max(begin, first);
        if (first > begin && sinks > begin && sinks < shown) {
            part(own, stride, tile, begin - base, sinks - base, weights, states);
            part(own, stride, tile, shown - base, end - base, weights, states);
        } else {
            part(own, stride, tile, (sinks > begin ? begin : shown) - base, end - base, weights, states);
        }
    }

    void part(const T* own, int64_t stride, const Tile<T>& tile, int64_t begin, int64_t end, float* weights,
              State* states) const {
        if (begin >= end) return;
        const int64_t group = shape.group(), padded = shape.padded();
        for (int64_t g = 0; g < group; ++g)
            score(own + g * stride, tile, begin, end, shape, sight, states[g], weights + g * POSITIONS);
        int64_t g = 0;
        for (; g + 4 <= group; g += 4) weigh_all<T, 4>(weights + g * POSITIONS, tile, begin, end, states + g, padded);
        switch (group - g) {
            case 3: weigh_all<T, 3>(weights + g * POSITIONS, tile, begin, end, states + g, padded); break;
            case 2: weigh_all<T, 2>(weights + g * POSITIONS, tile, begin, end, states + g, padded); break;
            case 1: weigh_all<T, 1>(weights + g * POSITIONS, tile, begin, end, states + g, padded); break;
        }
    }

    void copy_queries(int64_t first, int64_t count, int64_t head, std::vector<T>& copies) const {
        const int64_t group = shape.group(), padded = shape.padded();
        copies.assign(count * group * padded, T{});
        for (int64_t number = 0; number < count; ++number)
            for (int64_t g = 0; g < group; ++g) {
                const T* from = query + ((first + number) * shape.heads + head * group + g) * shape.head_dim;
                std::copy(from, from + shape.head_dim, copies.data() + (number * group + g) * padded);
            }
    }

    void write(int64_t token, int64_t query_head, State state) const {
        T* to = out + (token * shape.heads + query_head) * shape.head_dim;
        const float total = state.total();
        for (int64_t d = 0; d < shape.head_dim; d += LANES) {
            const f32x16 values = load(state.values() + d) / total;
            if (d + LANES <= shape.head_dim) {
                store(to + d, values);
            } else {
                for (int64_t lane = 0; d + lane < shape.head_dim; ++lane) from_float(to + d + lane, values[lane]);
            }
        }
    }
};

// A piece of work: some tokens of a row, all of their context or one segment of it.
struct Piece {
    int64_t row, first, count, segment;  // segment -1: all, merged on the way
    int64_t kept;  // where the states of a segment go, in units of heads
};

std::vector<State> states_in(std::vector<float>& memory, int64_t count, const Shape& shape) {
    const int64_t size = State::size(shape);
    memory.resize(count * size);
    std::vector<State> states(count);
    for (int64_t number = 0; number < count; ++number) {
        states[number] = State{memory.data() + number * size};
        states[number].clear(shape);
    }
    return states;
}

template <class T>
void attend(const Call<T>& call, int64_t rows, const int32_t* starts, const int32_t* contexts, const int32_t* tables,
            int64_t table_stride) {
    const Shape& shape = call.shape;
    const int64_t group = shape.group(), size = State::size(shape);
    const int64_t together = std::max<int64_t>(1, TOGETHER / group);
    std::vector<Piece> pieces;
    std::vector<int64_t> cut;  // rows whose segments are computed side by side
    int64_t kept = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t tokens = starts[row + 1] - starts[row];
        const int64_t segments = (contexts[row] + SEGMENT - 1) / SEGMENT;
        if (tokens == 1 && segments > 1) {
            cut.push_back(pieces.size());
            for (int64_t segment = 0; segment < segments; ++segment, kept += shape.heads)
                pieces.push_back({row, starts[row], 1, segment, kept});
        } else {  // the last tokens see most: they come first
            for (int64_t end = tokens; end > 0; end -= std::min(end, together))
                pieces.push_back({row, starts[row] + std::max<int64_t>(0, end - together), std::min(end, together), -1, 0});
        }
    }
    thread_local std::vector<float> shared;
    shared.resize(kept * size);
    float* const segments_at = shared.data();
    parallel_for(int64_t(pieces.size()) * shape.kv_heads, [&](int64_t task, int) {
        const Piece& piece = pieces[task / shape.kv_heads];
        const int64_t head = task % shape.kv_heads;
        const int64_t context = contexts[piece.row];
        const int64_t position = context - (starts[piece.row + 1] - piece.first);
        const int32_t* table = tables + piece.row * table_stride;
        thread_local std::vector<float> memory, partial;
        if (piece.segment >= 0) {
            std::vector<State> states(group);
            for (int64_t g = 0; g < group; ++g) {
                states[g] = State{segments_at + (piece.kept + head * group + g) * size};
                states[g].clear(shape);
            }
            const int64_t from = piece.segment * SEGMENT;
            call.segment(table, piece.first, 1, position, head, from, from + SEGMENT, states.data());
            return;
        }
        std::vector<State> whole = states_in(memory, piece.count * group, shape);
        call.segment(table, piece.first, piece.count, position, head, 0, SEGMENT, whole.data());
        for (int64_t from = SEGMENT; from < position + piece.count; from += SEGMENT) {
            std::vector<State> states = states_in(partial, piece.count * group, shape);
            call.segment(table, piece.first, piece.count, position, head, from, from + SEGMENT, states.data());
            for (size_t number = 0; number < states.size(); ++number)
                if (states[number].total() != 0) merge(shape, whole[number], states[number]);
        }
        for (int64_t number = 0; number < piece.count * group; ++number)
            call.write(piece.first + number / group, head * group + number % group, whole[number]);
    });
    parallel_for(int64_t(cut.size()) * shape.heads, [&](int64_t task, int) {
        const int64_t head = task % shape.heads;
        size_t number = cut[task / shape.heads];
        const Piece& first = pieces[number];
        State whole{segments_at + (first.kept + head) * size};
        while (++number < pieces.size() && pieces[number].segment > 0) {
            State segment{segments_at + (pieces[number].kept + head) * size};
            if (segment.total() != 0) merge(shape, whole, segment);
        }
        call.write(first.first, head, whole);
    });
}

}  // namespace
}  // namespace quire

using namespace quire;

// Attention of one layer; see `StepAttention.attend`. `dtype` 0 float32, 1 bfloat16: of queries, pages and output.
extern "C" void quire_attend(int dtype, int64_t rows, const int32_t* starts, const int32_t* contexts,
                             const int32_t* tables, int64_t table_stride, int64_t block_size, int64_t heads,
                             int64_t kv_heads, int64_t head_dim, float scale, float softcap, int64_t window,
                             int64_t sinks, const void* query, const void* keys, const void* values, void* out) {
    const Shape shape{block_size, heads, kv_heads, head_dim};
    const Sight sight{scale, softcap, window, sinks};
    if (dtype == 1)
        attend(Call<bf16>{shape, sight, (const bf16*)query, (const bf16*)keys, (const bf16*)values, (bf16*)out}, rows,
               starts, contexts, tables, table_stride);
    else
        attend(Call<float>{shape, sight, (const float*)query, (const float*)keys, (const float*)values, (float*)out},
               rows, starts, contexts, tables, table_stride);
}
