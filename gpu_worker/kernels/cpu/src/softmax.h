// Rows of queries and one tile: scores, online softmax (Milakov and Gimelshein 2018), and the values weighted by it.
#pragma once

#include <algorithm>
#include <limits>

#include "tiles.h"
#include "vmath.h"

namespace quire {
namespace {

constexpr float INF = std::numeric_limits<float>::infinity();
constexpr float LOG2E = 1.44269504f;
constexpr int AT_ONCE = SUMS < 6 ? SUMS : 6;  // rows whose sums are held in registers

// Vectors that are added up at once for ROWS rows: as many as registers have room for.
template <int ROWS>
constexpr int WIDEST = 4 * ROWS <= SUMS ? 4 : 2 * ROWS <= SUMS ? 2 : 1;

// What a query sees of its context.
struct AttentionSpec {
    float scale, softcap;  // softcap 0: none
    int64_t window, sinks, chunk;  // window 0, chunk 0: everything
    const float* slopes;  // of each head's linear bias (Press et al. 2022); null: none
    const float* sink_logits;  // of each head one more score, of a value that is 0; null: none
    int64_t first(int64_t position) const {
        if (chunk) return position - position % chunk;
        return window ? std::max<int64_t>(0, position + 1 - window) : 0;
    }
};

// One row of a group: what it asks, and the places of the tile that it sees: those before `sinks`, which are
// the same for all, and those from `shown` to `end` - 1. Its own place, `at`, may lie behind the tile.
template <class Factor>
struct Row {
    const Factor* query;
    float unit;  // what the query's numbers are multiples of
    int64_t shown, end, at;
    float slope;  // as scores, in units of ln 2
};

// What a row's scores become, those of vectors `first` to `last` - 1: scaled, in units of ln 2, and -INF where the row does not
// look. Returns the greatest of each lane, `most` among them. Where the tile's numbers have scales, scores are multiplied by
// them: each belongs to one position.
template <class K, class Factor>
inline __attribute__((always_inline)) f32x16 score(f32x16* scores, int64_t first, int64_t last, const Row<Factor>& row, const K& tile,
                                                   int64_t sinks, const AttentionSpec& spec, f32x16 most) {
    for (int64_t vector = first; vector < last; ++vector) {
        if (tile.scaled) scores[vector] *= load(tile.key_scales + vector * LANES) * row.unit;
        f32x16 score = scores[vector] * (spec.scale * LOG2E);
        if (spec.softcap > 0) score = tanh(scores[vector] * (spec.scale / spec.softcap)) * (spec.softcap * LOG2E);
        if (spec.slopes) score += row.slope * convert<float>(steps() + int(vector * LANES - row.at));
        if (row.shown > vector * LANES || row.end < (vector + 1) * LANES) {
            const i32x16 place = steps() + int(vector * LANES);
            const i32x16 seen = ((place >= int(row.shown)) | (place < int(sinks))) & (place < int(row.end));
            score = select(seen, score, splat(-INF));
        }
        most = greater(score, most);
        scores[vector] = score;
    }
    return most;
}

// The exponentials of a row's scores less the greatest, multiplied by the scales of values: calls `put(vector, weights)`.
// Returns `totals` with the exponentials.
template <class K, class Put>
inline __attribute__((always_inline)) f32x16 exponentials(const f32x16* scores, int64_t first, int64_t last, float greatest, const K& tile,
                                                          f32x16 totals, const Put& put) {
    for (int64_t vector = first; vector < last; ++vector) {
        const f32x16 weight = exp2(scores[vector] - greatest);
        totals += weight;
        if (!tile.scaled) {
            put(vector, weight);
        } else {  // the scale of what nobody sees may be anything
            const f32x16 scaled = weight * load(tile.scales_of_values() + vector * LANES);
            put(vector, select(weight == 0, f32x16{}, scaled));
        }
    }
    return totals;
}

// The same, into `weights`. Whole numbers are multiples of `unit`.
template <class K, class Factor>
inline __attribute__((always_inline)) f32x16 exponentials(f32x16* scores, int64_t first, int64_t last, float greatest, const K& tile,
                                                          f32x16 totals, Factor* weights, float& unit) {
    if constexpr (std::is_integral_v<Factor>) {
        u32x16 sizes = {};
        totals = exponentials(scores, first, last, greatest, tile, totals, [&](int64_t vector, f32x16 weight) {
            scores[vector] = weight;
            sizes = larger(sizes, weight);
        });
        const Scale scale(sizes, WHOLE);
        unit = scale.scale;
        for (int64_t vector = first; vector < last; ++vector)
            put_whole(whole(scores[vector] * scale.inverse), weights, POSITIONS, vector * LANES);
        return totals;
    } else {
        return exponentials(scores, first, last, greatest, tile, totals,
                            [&](int64_t vector, f32x16 weight) { store(weights + vector * LANES, weight); });
    }
}

// The softmax of a row continued with its scores of vectors `first` to `last` - 1. Exponentials go into `weights`.
template <class K, class Factor>
inline __attribute__((always_inline)) void soften(f32x16* scores, int64_t first, int64_t last, const Row<Factor>& row,
                                                  const K& tile, int64_t sinks, const Shape& shape,
                                                  const AttentionSpec& spec, State state, Factor* weights, float& unit) {
    const float greatest = maximum(score(scores, first, last, row, tile, sinks, spec, splat(state.most())));
    if (state.most() != greatest) {
        state.fade(exp2(splat(state.most() - greatest))[0], shape);
        state.most() = greatest;
    }
    store(state.totals(), exponentials(scores, first, last, greatest, tile, load(state.totals()), weights, unit));
}

// The same, compiled once for any number of rows.
template <class K, class Factor>
__attribute__((noinline)) void soften_apart(f32x16* scores, int64_t first, int64_t last, const Row<Factor>& row,
                                            const K& tile, int64_t sinks, const Shape& shape, const AttentionSpec& spec,
                                            State state, Factor* weights, float& unit) {
    soften(scores, first, last, row, tile, sinks, shape, spec, state, weights, unit);
}

// ROWS rows and one tile.
template <int ROWS, class K, class Factor, class F>
void see(const Row<Factor>* rows, const K& tile, int64_t sinks, const Shape& shape, const AttentionSpec& spec,
         State* states, F& fetch) {
    const Factor* queries[ROWS];
    int64_t shown = POSITIONS, end = 0;
    for (int row = 0; row < ROWS; ++row) {
        queries[row] = rows[row].query;
        shown = std::min(shown, rows[row].shown);
        end = std::max(end, rows[row].end);
    }
    const int64_t begin = sinks > tile.begin ? tile.begin : std::max(tile.begin, shown);
    if (begin >= end) return;
    const int64_t first = begin / LANES, last = (end + LANES - 1) / LANES;
    f32x16 scores[ROWS][VECTORS];
    for (int64_t vector = first; vector < last;) {
        if (WIDEST<ROWS> == 4 && vector + 4 <= last) {
            dot<ROWS, WIDEST<ROWS>>(queries, tile, vector, shape.head_dim, scores, fetch);
            vector += 4;
        } else if (WIDEST<ROWS> >= 2 && vector + 2 <= last) {
            dot<ROWS, std::min(WIDEST<ROWS>, 2)>(queries, tile, vector, shape.head_dim, scores, fetch);
            vector += 2;
        } else {
            dot<ROWS, 1>(queries, tile, vector, shape.head_dim, scores, fetch);
            vector += 1;
        }
    }
    alignas(64) Factor weights[ROWS][POSITIONS];
    float units[ROWS];
    for (int row = 0; row < ROWS; ++row) {
        const auto soften_row = [&](int64_t from, int64_t to) {
            soften(scores[row], from, to, rows[row], tile, sinks, shape, spec, states[row], weights[row], units[row]);
        };
        if constexpr (!K::INLINES) {
            soften_apart(scores[row], first, last, rows[row], tile, sinks, shape, spec, states[row], weights[row], units[row]);
        } else if (first == 0 && last == VECTORS) {
            soften_row(0, VECTORS);  // bounds that the compiler knows
        } else {
            soften_row(first, last);
        }
    }
    const auto weigh_all = [&](int64_t from, int64_t to) {
        if (from >= to) return;
        int64_t d = 0;
        constexpr int FOUR = std::max(WIDEST<ROWS>, int(K::STEP / LANES)), TWO = std::min(FOUR, 2);
        for (; d + FOUR * LANES <= shape.held; d += FOUR * LANES) weigh<ROWS, FOUR>(weights, units, tile, from, to, states, d, fetch);
        for (; d + TWO * LANES <= shape.held; d += TWO * LANES) weigh<ROWS, TWO>(weights, units, tile, from, to, states, d, fetch);
        if (d < shape.held) weigh<ROWS, 1>(weights, units, tile, from, to, states, d, fetch);
    };
    const bool whole_numbers = std::is_integral_v<Factor>;  // whose sums are rounded once for a tile
    if (!whole_numbers && sinks > begin && shown > sinks) {
        weigh_all(begin, std::min(sinks, end));
        weigh_all(shown, end);
    } else {
        weigh_all(begin, end);
    }
}

// Adds a segment to the whole: their softmaxes and what they have weighted.
inline void merge(const Shape& shape, State whole, State segment) {
    const float greatest = std::max(whole.most(), segment.most());
    whole.fade(exp2(splat(whole.most() - greatest))[0], shape);
    segment.fade(exp2(splat(segment.most() - greatest))[0], shape);
    for (float *to = whole.totals(), *from = segment.totals(); to < whole.at + State::size(shape); to += LANES, from += LANES)
        store(to, load(to) + load(from));
    whole.most() = greatest;
}

}  // namespace
}  // namespace quire
