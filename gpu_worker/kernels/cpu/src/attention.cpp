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
#include <vector>

#include "team.h"
#include "tile.h"
#include "vmath.h"

namespace quire {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr int64_t SEGMENT = 256;  // positions
constexpr int BLOCK = 6;  // rows of a product at a time: sums of 4 vectors each, all in registers
constexpr int TOGETHER = 48;  // query heads, over a chunk's tokens, that share what was read

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

inline f32x16 tanh(f32x16 x) { return 1.0f - 2.0f / (exp(x * 2.0f) + 1.0f); }

// One row of a product is one query head of one token: `ends` and the like are its own.
struct Row {
    State state;
    int64_t end, sinks, shown;  // places of the tile: before `end`, those before `sinks` and from `shown` on
    float fade;  // what the state is worth against the tile's greatest score

    i32x16 sees(int64_t start) const {
        i32x16 places;
        for (int lane = 0; lane < LANES; ++lane) places[lane] = int(start) + lane;
        return (places < int(end)) & ((places >= int(shown)) | (places < int(sinks)));
    }
};

// Scores, 64 of one row, to weights: exponentials against the greatest so far.
template <class T>
void soften(Row& row, const Sight& sight, f32x16* scores, T* weights) {
    f32x16 most = splat(-INF);
    for (int v = 0; v < POSITIONS / LANES; ++v) {
        f32x16 scaled = scores[v] * sight.scale;
        if (sight.softcap > 0) scaled = tanh(scaled / sight.softcap) * sight.softcap;
        scores[v] = select(row.sees(v * LANES), scaled, splat(-INF));
        most = select(scores[v] > most, scores[v], most);
    }
    const float before = row.state.most(), greatest = std::max(before, maximum(most));
    row.fade = before == greatest ? 1.0f : before > -INF ? exp(splat(before - greatest))[0] : 0.0f;
    const float against = greatest > -INF ? greatest : 0.0f;
    f32x16 total = {};
    for (int v = 0; v < POSITIONS / LANES; ++v) {
        store(weights + v * LANES, exp(scores[v] - against));
        total += load(weights + v * LANES);  // as rounded: what is multiplied adds up to one
    }
    row.state.most() = greatest;
    row.state.total() = row.state.total() * row.fade + sum(total);
}

// ROWS rows and one tile: `queries` are the rows' units.
template <class T, int ROWS>
void attend_rows(const Shape& shape, const Sight& sight, const Units<T>& units, int64_t begin, Row* rows,
                 const uint32_t* const* queries) {
    alignas(64) uint32_t weights[ROWS][POSITIONS / PER_UNIT<T>];
    const uint32_t* weight_rows[ROWS];
    f32x16 scores[ROWS][POSITIONS / LANES] = {};
    multiply_add<T, ROWS, POSITIONS / LANES>(scores, queries, units.keys.data(), POSITIONS, 0, shape.head_dim / PER_UNIT<T>);
    int64_t end = 0;
    for (int r = 0; r < ROWS; ++r) {
        soften(rows[r], sight, scores[r], reinterpret_cast<T*>(weights[r]));
        weight_rows[r] = weights[r];
        end = std::max(end, rows[r].end);
    }
    const int64_t first = begin / PER_UNIT<T>, last = (end + PER_UNIT<T> - 1) / PER_UNIT<T>, padded = shape.padded();
    const auto weigh = [&](auto width, int64_t d) {
        constexpr int WIDTH = decltype(width)::value;
        f32x16 sums[ROWS][WIDTH];
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < WIDTH; ++v) sums[r][v] = load(rows[r].state.values() + d + v * LANES) * rows[r].fade;
        multiply_add<T, ROWS, WIDTH>(sums, weight_rows, units.values.data() + d, padded, first, last);
        for (int r = 0; r < ROWS; ++r)
            for (int v = 0; v < WIDTH; ++v) store(rows[r].state.values() + d + v * LANES, sums[r][v]);
    };
    int64_t d = 0;
    for (; d + 4 * LANES <= padded; d += 4 * LANES) weigh(std::integral_constant<int, 4>{}, d);
    for (; d < padded; d += LANES) weigh(std::integral_constant<int, 1>{}, d);
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
    Units<T> units;
    std::vector<Row> rows;
    std::vector<const uint32_t*> queries;
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
            room.units.take(*now, found ? next : nullptr, shape);
            tokens(*now, first, count, position, own_head, own_base, room,
                   states + (own_head - head) * count * shape.group());
            std::swap(now, next);
        }
    }

    // All of a chunk's tokens that see some of a tile.
    void tokens(const Tile<T>& tile, int64_t first, int64_t count, int64_t position, int64_t head, int64_t base,
                Room<T>& room, State* states) const {
        const int64_t group = shape.group();
        room.rows.clear();
        room.queries.clear();
        for (int64_t number = std::max<int64_t>(0, base + tile.begin - position); number < count; ++number) {
            const int64_t own = position + number, end = std::min(tile.end, own + 1 - base);
            const T* from = query + ((first + number) * shape.heads + head * group) * shape.head_dim;
            for (int64_t g = 0; g < group; ++g) {
                room.rows.push_back({states[number * group + g], end, sight.sinks - base, sight.first(own) - base, 1.0f});
                room.queries.push_back(reinterpret_cast<const uint32_t*>(from + g * shape.head_dim));
            }
        }
        const int64_t rows = room.rows.size();
        int64_t row = 0;
        for (; row + BLOCK <= rows; row += BLOCK) block<BLOCK>(tile, room, row);
        switch (rows - row) {
            case 5: return block<5>(tile, room, row);
            case 4: return block<4>(tile, room, row);
            case 3: return block<3>(tile, room, row);
            case 2: return block<2>(tile, room, row);
            case 1: return block<1>(tile, room, row);
        }
    }

    template <int ROWS>
    void block(const Tile<T>& tile, Room<T>& room, int64_t row) const {
        attend_rows<T, ROWS>(shape, sight, room.units, tile.begin, room.rows.data() + row, room.queries.data() + row);
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
