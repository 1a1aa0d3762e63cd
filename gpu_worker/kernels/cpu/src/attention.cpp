// Paged attention over a ragged batch: decodes, chunks of prefills and runs of drafts in one call.
//
// Each query head of a token, a row, sees its sequence's keys in tiles of 64 positions, aligned, with an
// online softmax (Milakov and Gimelshein 2018), from tile to tile within segments of 256 positions;
// segments are merged in order. A decode's segments are computed side by side; a chunk's rows share each
// tile that was read, and up to six are computed at once. The sums of a row are the same, bit for bit,
// however the work is cut.
//
//     positions   0      64     128          256                    512
//     tiles       │──────│──────│── ... ─────│──────│── ...
//     segments    └──────────────────────────┘└─────────────────────┘   each from zero, then merged
#include <algorithm>
#include <cmath>
#include <vector>

#include "shared.h"
#include "softmax.h"
#include "tape.h"
#include "team.h"
#include "tiles.h"
#include "unit_softmax.h"

namespace quire {
namespace {

constexpr int64_t SEGMENT = 256;  // positions
constexpr int TOGETHER = 48;  // rows that share what was read

// Whether matrix units compute with tiles of kind K.
template <class K>
constexpr bool BY_UNITS = false;
#if QUIRE_MATRIX_UNITS
template <class T, class Page>
constexpr bool BY_UNITS<SeenByUnits<T, Page>> = true;
using Units = MatrixUnits;
#else
template <class Page>
struct SeenValues {};
using Units = Nothing;
#endif

// What a thread computes in.
template <class K>
struct Room {
    K tiles[2];
    SeenValues<typename K::Page> values;
    Units* units;
    std::vector<typename K::Factor> queries;
    std::vector<float> query_units;
    std::vector<Row<typename K::Factor>> rows;
    std::vector<float> whole, partial;
};

// The queries of a piece, as factors. Distances from one token and from one head to the next, in numbers.
template <class Factor>
struct Queries {
    const Factor* at;
    int64_t token, head;
    const float* units;  // of each query, as `Row::unit`; null: 1
};

// Everything that a call computes with: tiles of kind K.
template <class K>
struct Call {
    using T = typename K::Number;
    using Page = typename K::Page;
    using Factor = typename K::Factor;
    static constexpr bool DIRECT = std::is_same_v<Factor, T> && !BY_UNITS<K>;  // queries are factors as they are
    Shape shape;
    AttentionSpec spec;
    const T* query;  // [tokens, heads, head_dim]
    Kept<Page> kept;
    T* out;  // [tokens, heads, value_dim]

    // The queries `first` to `first` + `count` - 1, at positions from `position` on, over the part of their context
    // within [from, to), a segment, for key heads `head` to `heads_end` - 1. `states`: [key heads][count][group].
    void segment(const int32_t* table, int64_t first, int64_t count, int64_t position, int64_t head,
                 int64_t heads_end, int64_t from, int64_t to, Room<K>& room, State* states) const {
        const int64_t last = std::min(to, position + count);
        const Queries<Factor> queries = factors(first, count, head * shape.group(), heads_end * shape.group(), room);
        // One tile of one head after the other; while one is computed with, the next is on its way.
        int64_t base = from - POSITIONS, next_head = heads_end, begin = 0, end = 0;
        const auto find_next = [&](K& tile) {
            if (next_head == heads_end) {
                do {
                    base += POSITIONS;
                    if (base >= last) return false;
                    end = std::min(base + POSITIONS, last);
                    // The first token's window begins first; sinks are seen by all.
                    begin = base < spec.sinks ? base : std::max(base, spec.first(position));
                } while (begin >= end);
                next_head = head;
            }
            tile.find(shape, kept, table, next_head++, base, begin, end);
            return true;
        };
        K*now = &room.tiles[0], *next = &room.tiles[1];
        for (bool found = find_next(*now); found;) {
            const int64_t own_head = next_head - 1, own_base = base;
            found = find_next(*next);
            const int64_t heads_before = (own_head - head) * shape.group();
            Queries<Factor> own = queries;
            own.at += heads_before * (DIRECT ? 1 : count) * queries.head;
            if (own.units) own.units += heads_before * count;
            rows(*now, found ? next : nullptr, own, count, position, own_head, own_base, room,
                 states + heads_before * count);
            std::swap(now, next);
        }
    }

    // Queries of `count` tokens from `first` on, of heads `head` to `heads_end` - 1: where they are, or as factors, those of
    // a key head side by side, in the order of tokens.
    Queries<Factor> factors(int64_t first, int64_t count, int64_t head, int64_t heads_end, Room<K>& room) const {
        const int64_t dim = shape.head_dim, stride = shape.heads * dim, group = shape.group();
        const T* from = query + first * stride + head * dim;
        if constexpr (DIRECT) {
            return {from, stride, dim, nullptr};
        } else {
            const int64_t size = shape.padded() * FACTORS<Factor>, rows = count * (heads_end - head);
            const int64_t more = BY_UNITS<K> ? LANES : 0;  // units read whole registers, of whatever lies behind the rows
            room.queries.assign((rows + more) * size, Factor{});
            room.query_units.assign(rows, 1);
            Factor* to = room.queries.data();
            float* unit = room.query_units.data();
            for (int64_t h = 0; h < heads_end - head; h += group)
                for (int64_t token = 0; token < count; ++token)
                    for (int64_t own = h; own < h + group; ++own, to += size, ++unit)
                        put_query(from + token * stride + own * dim, dim, to, shape.padded(), unit);
            return {room.queries.data(), group * size, size, room.query_units.data()};
        }
    }

    // All rows of a chunk and one tile. `queries`: of the tile's heads.
    void rows(const K& tile, const K* next, const Queries<Factor>& queries, int64_t count, int64_t position,
              int64_t head, int64_t base, Room<K>& room, State* states) const {
        const int64_t heads = shape.group(), sinks = spec.sinks - base;
        room.rows.clear();
        for (int64_t token = 0; token < count; ++token) {
            const int64_t at = position + token - base;
            for (int64_t h = 0; h < heads; ++h)
                room.rows.push_back({queries.at + token * queries.token + h * queries.head,
                                     queries.units ? queries.units[token * heads + h] : 1,
                                     spec.first(position + token) - base, std::min(tile.end, at + 1), at,
                                     spec.slopes ? spec.slopes[head * heads + h] * LOG2E : 0.0f});
        }
        if (next && !next->worth_fetching()) next = nullptr;
        const int64_t most = BY_UNITS<K> ? LANES : AT_ONCE;
        const int64_t many = count * heads, turns = (many + most - 1) / most, at_once = (many + turns - 1) / turns;
        typename K::Fetch fetch(next, shape, std::min(turns, FETCHING));
        NoFetch none;
        if constexpr (BY_UNITS<K>) room.values.find(tile);
        for (int64_t turn = 0; turn < turns; ++turn) {
            const int64_t row = turn * at_once, now = std::min(at_once, many - row);
            const auto see_now = [&](auto& fetch) {
                if constexpr (BY_UNITS<K>)
                    see_by_units(room.rows.data() + row, now, queries.at + row * queries.head, queries.head, tile, room.values, shape,
                                 spec, states + row, *room.units, fetch);
                else
                    group(now, tile, sinks, room.rows.data() + row, states + row, fetch);
            };
            turn < FETCHING ? see_now(fetch) : see_now(none);
        }
        fetch.rest();
    }

    template <class F>
    void group(int64_t count, const typename K::Seen& tile, int64_t sinks, const Row<Factor>* rows, State* states, F& fetch) const {
        switch (count) {
            case 6: return see<std::min(6, AT_ONCE)>(rows, tile, sinks, shape, spec, states, fetch);
            case 5: return see<std::min(5, AT_ONCE)>(rows, tile, sinks, shape, spec, states, fetch);
            case 4: return see<std::min(4, AT_ONCE)>(rows, tile, sinks, shape, spec, states, fetch);
            case 3: return see<3>(rows, tile, sinks, shape, spec, states, fetch);
            case 2: return see<2>(rows, tile, sinks, shape, spec, states, fetch);
            case 1: return see<1>(rows, tile, sinks, shape, spec, states, fetch);
        }
    }

    // Where the segment begins that comes after the one at `before` among those in which a token at `position`, or one
    // behind it, may see something.
    int64_t next_segment(int64_t before, int64_t position) const {
        const int64_t next = before + SEGMENT;
        return next < spec.sinks ? next : std::max(next, spec.first(position) / SEGMENT * SEGMENT);
    }

    void write(int64_t token, int64_t query_head, State state) const {
        float total = sum(load(state.totals()));
        if (spec.sink_logits) total += std::exp2(spec.sink_logits[query_head] * LOG2E - state.most());
        K::write(state, total, shape.value_dim,
                 out + (token * shape.heads + query_head) * shape.value_dim);
    }
};

// A piece of work: some tokens of a row, all of their context or one segment of it.
struct Piece {
    int64_t row, first, count, segment;  // where the segment begins; -1: all, merged on the way
    int64_t kept;  // where the states of a segment go, in units of heads
};

// Memory for `numbers` numbers, from the beginning of a cache line on.
float* lines(std::vector<float>& memory, int64_t numbers) {
    constexpr int64_t LINE_NUMBERS = LINE / sizeof(float);
    memory.resize(numbers + LINE_NUMBERS);
    return memory.data() + (-reinterpret_cast<uintptr_t>(memory.data()) / sizeof(float)) % LINE_NUMBERS;
}

// `count` empty states, side by side in memory.
std::vector<State> states_at(float* memory, int64_t count, const Shape& shape) {
    std::vector<State> states(count);
    for (int64_t number = 0; number < count; ++number) {
        states[number] = State{memory + number * State::size(shape)};
        states[number].clear(shape);
    }
    return states;
}

template <class K>
void attend(const Call<K>& call, int64_t rows, const int32_t* starts, const int32_t* contexts, const int32_t* tables,
            int64_t table_stride) {
    const Shape& shape = call.shape;
    const int64_t group = shape.group(), size = State::size(shape);
    const int64_t together = std::max<int64_t>(1, TOGETHER / group);
    std::vector<Piece> pieces;
    std::vector<int64_t> cut;  // rows whose segments are computed side by side
    int64_t kept = 0;
    for (int64_t row = 0; row < rows; ++row) {
        const int64_t tokens = starts[row + 1] - starts[row], context = contexts[row];
        const auto next = [&](int64_t before) { return call.next_segment(before, context - 1); };
        int64_t segment = next(-SEGMENT);
        if (tokens == 1 && next(segment) < context) {
            cut.push_back(pieces.size());
            for (; segment < context; segment = next(segment), kept += shape.heads)
                pieces.push_back({row, starts[row], 1, segment, kept});
        } else {  // the last tokens see most: they come first
            for (int64_t end = tokens; end > 0; end -= std::min(end, together))
                pieces.push_back({row, starts[row] + std::max<int64_t>(0, end - together), std::min(end, together), -1, 0});
        }
    }
    static std::vector<Room<K>> rooms;
    rooms.resize(team_size());  // a team of one may have grown
    static std::vector<float> shared;
    float* const segments_at = lines(shared, kept * size);
    // With enough pieces one task takes all heads, whose keys lie side by side.
    const int64_t at_once = int64_t(pieces.size()) >= 4 * team_size() ? shape.kv_heads : 1;
    const int64_t shares = shape.kv_heads / at_once;
    parallel_for<Units>(int64_t(pieces.size()) * shares, [&](int64_t task, int thread, Units& units) {
        Room<K>& room = rooms[thread];
        room.units = &units;
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
            compute(piece.segment, states.data());
            return;
        }
        int64_t from = call.next_segment(-SEGMENT, position);
        std::vector<State> whole = states_at(lines(room.whole, many * size), many, shape);
        compute(from, whole.data());
        while ((from = call.next_segment(from, position)) < position + piece.count) {
            std::vector<State> states = states_at(lines(room.partial, many * size), many, shape);
            compute(from, states.data());
            for (int64_t number = 0; number < many; ++number)
                merge(shape, whole[number], states[number]);
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
        while (++number < pieces.size() && pieces[number].row == first.row) {
            State segment{segments_at + (pieces[number].kept + head) * size};
            merge(shape, whole, segment);
        }
        call.write(first.first, head, whole);
    });
}

// A type as a value.
template <class K>
struct A {
    using Kind = K;
};

}  // namespace
}  // namespace quire

using namespace quire;

// Attention of one layer; see `StepAttention.attend`. `dtype` 0 float32, 1 bfloat16: of queries and output.
// Without `values` pages are shared: a value is the first `value_dim` numbers of a key.
EXPORTED void quire_attend(int dtype, int page_type, int64_t rows, const int32_t* starts, const int32_t* contexts,
                           const int32_t* tables, int64_t table_stride, int64_t block_size, int64_t heads,
                           int64_t kv_heads, int64_t head_dim, int64_t value_dim, float scale, float softcap,
                           int64_t window, int64_t sinks, int64_t chunk, const float* slopes,
                           const float* sink_logits, const void* query, const void* keys, const void* values, const float* key_scales, const float* value_scales, void* out) {
    const AttentionSpec spec{scale, softcap, window, sinks, chunk, slopes, sink_logits};
    const auto run = [&](auto tile) {
        using K = typename decltype(tile)::Kind;
        using Page = typename K::Page;
        using T = typename K::Number;
        const Shape shape{{block_size, kv_heads, head_dim}, heads, value_dim, (value_dim + K::STEP - 1) / K::STEP * K::STEP};
        const Kept<Page> kept{(const Page*)keys, (const Page*)values, key_scales, value_scales};
        attend(Call<K>{shape, spec, (const T*)query, kept, (T*)out}, rows, starts, contexts, tables, table_stride);
    };
    const auto of_number = [&](auto number) {
        using T = decltype(number);
        with_page<T>(page_type, [&](auto page) {
            using Page = decltype(page);
#if QUIRE_MATRIX_UNITS
            if constexpr (!std::is_same_v<Page, float>)
                if (values && !sinks) return run(A<SeenByUnits<T, Page>>{});
#endif
            values ? run(A<Tile<T, Page>>{}) : run(A<SharedTile<T, Page>>{});
        });
    };
    dtype == 1 ? of_number(bf16{}) : of_number(float{});
}
PLAYABLE(quire_attend)
