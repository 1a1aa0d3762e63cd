// Paged attention over a ragged batch: decodes, chunks of prefills and runs of drafts in one call.
//
// Each query head of a token sees its sequence's keys in tiles of 64 positions, aligned, with an online
// softmax (Milakov and Gimelshein 2018), from tile to tile within segments of 256 positions; segments are
// merged in order. A decode's segments are computed side by side, a chunk's tokens share each tile that was
// read: the sums are the same, bit for bit, however the work is cut.
//
//     positions   0      64     128          256                    512
//     tiles       │──────│──────│── ... ─────│──────│── ...
//     segments    └──────────────────────────┘└─────────────────────┘   each from zero, then merged
#include <algorithm>
#include <limits>
#include <type_traits>
#include <vector>

#include "team.h"
#include "vmath.h"

namespace quire {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr int POSITIONS = 64;  // of a tile
constexpr int64_t SEGMENT = 256;  // positions
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
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i) sums[i] += load(keys[i] + d) * piece;
}
template <int STEP>
inline void dot(f32x16 (&sums)[LANES], const bf16* query, const bf16* const* keys, int64_t d) {
#if defined(__AVX512BF16__)
    const __m512bh piece = (__m512bh)_mm512_loadu_si512(query + d);
#pragma GCC unroll 16
    for (int i = 0; i < LANES; ++i)
        sums[i] = (f32x16)_mm512_dpbf16_ps((__m512)sums[i], (__m512bh)_mm512_loadu_si512(keys[i] + d), piece);
#else
    for (int half = 0; half < 2; ++half) {
        const f32x16 piece = load(query + d + half * LANES);
    #pragma GCC unroll 16
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
    int64_t begin = 0, end = 0;  // places of the positions that are looked at
    std::vector<T> copies;  // where rows are no whole vectors

    // Look up positions `first` to `last` - 1 of the tile that starts at `base`.
    void find(const Shape& shape, const T* key_pages, const T* value_pages, const int32_t* table, int64_t head,
              int64_t base, int64_t first, int64_t last) {
        int64_t block = first / shape.block_size, offset = first % shape.block_size;
        begin = first - base;
        end = last - base;
        for (int64_t place = begin; place < end; ++place) {
            const int64_t entry = (table[block] * shape.kv_heads + head) * shape.block_size + offset;
            keys[place] = key_pages + entry * shape.head_dim;
            values[place] = value_pages + entry * shape.head_dim;
            if (++offset == shape.block_size) {
                offset = 0;
                ++block;
            }
        }
    }

    // Keys come 16 at a time: what lies outside stands for the nearest within.
    void complete(const Shape& shape) {
        if (shape.head_dim % DOT_STEP<T>) copy(shape);
        for (int64_t place = begin / LANES * LANES; place < begin; ++place) keys[place] = keys[begin];
        for (int64_t place = end; place % LANES; ++place) keys[place] = keys[end - 1];
    }

    void copy(const Shape& shape) {
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

// Fetches the next tile piece by piece while one is computed with: all at once, it would be waited for.
template <class T>
struct Fetch {
    const Tile<T>* tile;
    int64_t head_dim, pieces, place;

    Fetch(const Tile<T>* tile, const Shape& shape)
        : tile(tile), head_dim(shape.head_dim), pieces(shape.group() * (POSITIONS / LANES)), place(tile ? tile->begin : 0) {}

    void some() {
        if (!tile) return;
        const int64_t last = std::min(tile->end, place + (POSITIONS + pieces - 1) / pieces);
        for (; place < last; ++place)
            for (int64_t d = 0; d < head_dim; d += 64 / int64_t(sizeof(T))) {
                __builtin_prefetch(tile->keys[place] + d, 0, 2);
                __builtin_prefetch(tile->values[place] + d, 0, 2);
            }
    }
};

// Weights [HEADS][POSITIONS] times values: added to the states of HEADS heads, WIDTH vectors from `d` on.
template <int HEADS, int WIDTH, class T>
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

#if defined(__AVX512BF16__)
// For bfloat16, two positions at a time: their values are interleaved, their weights rounded to bfloat16. The
// interleaving leaves the dimensions of each 32 in another order, which `in_order` undoes at the end.
template <int HEADS, int WIDTH>
void weigh(const float* weights, const bf16* const* values, int64_t begin, int64_t end, State* states, int64_t d) {
    __m512 held[HEADS][WIDTH];
    uint32_t pairs[HEADS][POSITIONS / 2];
    for (int h = 0; h < HEADS; ++h) {
        for (int64_t place = 0; place < POSITIONS; place += LANES) {
            const __m256bh rounded = _mm512_cvtneps_pbh(_mm512_loadu_ps(weights + h * POSITIONS + place));
            std::memcpy(&pairs[h][place / 2], &rounded, sizeof(rounded));
        }
        for (int v = 0; v < WIDTH; ++v) held[h][v] = _mm512_loadu_ps(states[h].values() + d + v * LANES);
    }
    for (int64_t place = begin / 2 * 2; place < end; place += 2) {
        // A weight outside is zero; its values are those of the other of the pair.
        const bf16* one = values[place < begin ? place + 1 : place] + d;
        const bf16* two = values[place + 1 < end ? place + 1 : place] + d;
        __m512i value[WIDTH];
        for (int v = 0; v < WIDTH; v += 2) {
            const __m512i left = _mm512_loadu_si512(one + v * LANES), right = _mm512_loadu_si512(two + v * LANES);
            value[v] = _mm512_unpacklo_epi16(left, right);
            value[v + 1] = _mm512_unpackhi_epi16(left, right);
        }
        for (int h = 0; h < HEADS; ++h) {
            const __m512bh pair = (__m512bh)_mm512_set1_epi32(int(pairs[h][place / 2]));
            for (int v = 0; v < WIDTH; ++v) held[h][v] = _mm512_dpbf16_ps(held[h][v], (__m512bh)value[v], pair);
        }
    }
    for (int h = 0; h < HEADS; ++h)
        for (int v = 0; v < WIDTH; ++v) _mm512_storeu_ps(states[h].values() + d + v * LANES, held[h][v]);
}
#endif

// A state's weighted values from `d` on, 32 of them, in the order of the dimensions.
template <class T>
void in_order(State state, int64_t d, f32x16 (&values)[2]) {
    values[0] = load(state.values() + d);
    values[1] = load(state.values() + d + LANES);
#if defined(__AVX512BF16__)
    if constexpr (std::is_same_v<T, bf16>) {
        // Low halves: dimensions 0-3, 8-11, 16-19, 24-27; high ones: 4-7, 12-15, 20-23, 28-31.
        const f32x16 low = values[0], high = values[1];
        values[0] = __builtin_shufflevector(low, high, 0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23);
        values[1] = __builtin_shufflevector(low, high, 8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
    }
#endif
}

template <class T, int HEADS>
void weigh_all(const float* weights, const Tile<T>& tile, int64_t begin, int64_t end, State* states, int64_t padded) {
    int64_t d = 0;
    for (; d + 4 * LANES <= padded; d += 4 * LANES) weigh<HEADS, 4>(weights, tile.values, begin, end, states, d);
    for (; d < padded; d += 2 * LANES) weigh<HEADS, 2>(weights, tile.values, begin, end, states, d);
}

// One query head and one tile: scores of places `begin` to `end` - 1 into `weights`, as exponentials.
template <class T>
void score(const T* query, const Tile<T>& tile, int64_t begin, int64_t end, const Shape& shape, const Sight& sight,
           State state, float* weights, Fetch<T>& fetch) {
    i32x16 lanes;
    for (int lane = 0; lane < LANES; ++lane) lanes[lane] = lane;
    f32x16 most = splat(-INF);
    for (int64_t start = begin / LANES * LANES; start < end; start += LANES) {
        f32x16 sums[LANES] = {};
        fetch.some();
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

// What a thread computes in.
template <class T>
struct Room {
    Tile<T> tiles[2];
    std::vector<float> weights;
    std::vector<T> queries;
    std::vector<float> whole, partial;
};

// Everything that a call computes with.
template <class T>
struct Call {
    Shape shape;
    Sight sight;
    const T* query;  // [tokens, heads, head_dim]
    const T* key_pages;
    const T* value_pages;
    T* out;  // as query

    // The queries `first` to `first` + `count` - 1, at positions from `position` on, over the part of their context
    // within [from, to), a segment, for key heads `head` to `heads_end` - 1. `states`: [key heads][count][group].
    void segment(const int32_t* table, int64_t first, int64_t count, int64_t position, int64_t head,
                 int64_t heads_end, int64_t from, int64_t to, Room<T>& room, State* states) const {
        room.weights.resize(shape.group() * POSITIONS);
        const int64_t last = std::min(to, position + count);
        // One tile of one head after the other; while one is computed with, the next is on its way.
        int64_t base = from - POSITIONS, next_head = heads_end, begin = 0, end = 0;
        const auto find_next = [&](Tile<T>& tile) {
            if (next_head == heads_end) {
                do {
                    base += POSITIONS;
                    if (base >= last) return false;
                    end = std::min(base + POSITIONS, last);
                    // The first token's window begins first; sinks are seen by all.
                    begin = base < sight.sinks ? base : std::max(base, sight.first(position));
                } while (begin >= end);
                next_head = head;
            }
            tile.find(shape, key_pages, value_pages, table, next_head++, base, begin, end);
            return true;
        };
        Tile<T>*now = &room.tiles[0], *next = &room.tiles[1];
        for (bool found = find_next(*now); found;) {
            const int64_t own_head = next_head - 1, own_base = base;
            found = find_next(*next);
            now->complete(shape);
            tokens(*now, found ? next : nullptr, first, count, position, own_head, own_base, room,
                   states + (own_head - head) * count * shape.group());
            std::swap(now, next);
        }
    }

    // All of a chunk's tokens and one tile.
    void tokens(const Tile<T>& tile, const Tile<T>* next, int64_t first, int64_t count, int64_t position, int64_t head, int64_t base,
                Room<T>& room, State* states) const {
        const int64_t group = shape.group(), dim = shape.head_dim, padded = shape.padded();
        const bool whole = dim % DOT_STEP<T> == 0;
        if (!whole) copy_queries(first, count, head, room.queries);
        Fetch<T> fetch(next, shape);
        for (int64_t number = 0; number < count; ++number) {
            const int64_t end = std::min(tile.end, position + number + 1 - base);
            const T* own = whole ? query + ((first + number) * shape.heads + head * group) * dim
                                 : room.queries.data() + number * group * padded;
            see(own, whole ? dim : padded, tile, tile.begin, end, sight.sinks - base, sight.first(position + number) - base,
                room.weights.data(), states + number * group, fetch);
        }
    }

    // One token's query heads and places `begin` to `end` - 1 of a tile: those before `sinks`, and those from `shown` on.
    void see(const T* own, int64_t stride, const Tile<T>& tile, int64_t begin, int64_t end, int64_t sinks, int64_t shown,
             float* weights, State* states, Fetch<T>& fetch) const {
        if (sinks <= begin) {
            part(own, stride, tile, std::max(begin, shown), end, weights, states, fetch);
        } else if (shown <= sinks) {
            part(own, stride, tile, begin, end, weights, states, fetch);
        } else {
            part(own, stride, tile, begin, std::min(sinks, end), weights, states, fetch);
            part(own, stride, tile, shown, end, weights, states, fetch);
        }
    }

    void part(const T* own, int64_t stride, const Tile<T>& tile, int64_t begin, int64_t end, float* weights,
              State* states, Fetch<T>& fetch) const {
        if (begin >= end) return;
        const int64_t group = shape.group(), padded = shape.padded();
        for (int64_t g = 0; g < group; ++g)
            score(own + g * stride, tile, begin, end, shape, sight, states[g], weights + g * POSITIONS, fetch);
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
        for (int64_t d = 0; d < shape.head_dim; d += 2 * LANES) {
            f32x16 values[2];
            in_order<T>(state, d, values);
            for (int64_t half = 0; half < 2; ++half) {
                const int64_t first = d + half * LANES, left = shape.head_dim - first;
                const f32x16 mean = values[half] / total;
                if (left >= LANES) {
                    store(to + first, mean);
                } else {
                    for (int64_t lane = 0; lane < left; ++lane) from_float(to + first + lane, mean[lane]);
                }
            }
        }
    }
};

// A piece of work: some tokens of a row, all of their context or one segment of it.
struct Piece {
    int64_t row, first, count, segment;  // segment -1: all, merged on the way
    int64_t kept;  // where the states of a segment go, in units of heads
};

// So many states, side by side in memory, empty.
std::vector<State> states_at(float* memory, int64_t count, const Shape& shape) {
    std::vector<State> states(count);
    for (int64_t number = 0; number < count; ++number) {
        states[number] = State{memory + number * State::size(shape)};
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
    static std::vector<Room<T>> rooms(team_size());
    static std::vector<float> shared;
    shared.resize(kept * size);
    float* const segments_at = shared.data();
    // With enough pieces one task takes all heads, whose keys lie side by side.
    const int64_t at_once = int64_t(pieces.size()) >= 4 * team_size() ? shape.kv_heads : 1;
    const int64_t shares = shape.kv_heads / at_once;
    parallel_for(int64_t(pieces.size()) * shares, [&](int64_t task, int thread) {
        Room<T>& room = rooms[thread];
        const Piece& piece = pieces[task / shares];
        const int64_t head = task % shares * at_once, heads_end = head + at_once;
        const int64_t position = contexts[piece.row] - (starts[piece.row + 1] - piece.first);
        const int32_t* table = tables + piece.row * table_stride;
        const int64_t many = at_once * piece.count * group;
        const auto compute = [&](int64_t from, State* states) {
            call.segment(table, piece.first, piece.count, position, head, heads_end, from, from + SEGMENT, room, states);
        };
        if (piece.segment >= 0) {
            std::vector<State> states = states_at(segments_at + (piece.kept + head * group) * size, many, shape);
            compute(piece.segment * SEGMENT, states.data());
            return;
        }
        room.whole.resize(many * size);
        std::vector<State> whole = states_at(room.whole.data(), many, shape);
        compute(0, whole.data());
        for (int64_t from = SEGMENT; from < position + piece.count; from += SEGMENT) {
            room.partial.resize(many * size);
            std::vector<State> states = states_at(room.partial.data(), many, shape);
            compute(from, states.data());
            for (int64_t number = 0; number < many; ++number)
                if (states[number].total() != 0) merge(shape, whole[number], states[number]);
        }
        for (int64_t number = 0; number < many; ++number) {
            const int64_t own_head = head + number / (piece.count * group), token = number / group % piece.count;
            call.write(piece.first + token, own_head * group + number % group, whole[number]);
        }
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
