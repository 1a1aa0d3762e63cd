// Rows of queries and one tile of bfloat16 or int8 by a processor's matrix units; see softmax.h.
//
// Pages have keys and values as the units take weights: words of 16 positions, and of 16 dimensions. Up to 16 rows are
// multiplied at once. With int8 a query's or weight's upper bits are one row of bytes, and its lower ones the next.
#pragma once

#include <array>

#include "matrix_units.h"
#include "softmax.h"

#if QUIRE_MATRIX_UNITS

namespace quire {
namespace {

// Registers: sums of four vectors of positions or dimensions; operands of whole steps of 16 words, and of fewer words. 8 words
// of bfloat16 are what a vector of positions has.
enum { SCORES = 0, WHOLE_ROWS = 4, WHOLE_PAGE = 5, REST_ROWS = 6, REST_PAGE = 7 };
constexpr int64_t WHOLE_WORDS = 16, HALF_WORDS = 8;

inline RegisterShapes shapes_of_rows(int64_t rows, int64_t rest) {
    RegisterShapes shapes;
    for (int number = 0; number < VECTORS; ++number) shapes.set(SCORES + number, rows, LANES);
    shapes.set(WHOLE_ROWS, rows, WHOLE_WORDS);
    shapes.set(WHOLE_PAGE, WHOLE_WORDS, LANES);
    if (!rest) return shapes;
    shapes.set(REST_ROWS, rows, rest);
    shapes.set(REST_PAGE, rest, LANES);
    return shapes;
}

// A tile that matrix units compute with: they take all places from the first that is seen to the last.
template <class T, class Page>
struct SeenByUnits : Tile<T, Page> {
    using Factor = std::conditional_t<std::is_same_v<Page, int8_t>, int8_t, T>;
};

// Values of a tile with zeros where nobody looks: what lies there may be no numbers.
template <class Page>
struct SeenValues {
    const bf16* at[VECTORS];
    std::vector<bf16> copies;

    void find(const SeenTile<bf16>& tile) {
        const int64_t size = LANES / PACK<bf16> * tile.value_stride;
        copies.resize(2 * size);
        bf16* copy = copies.data();
        for (int64_t vector = tile.begin / LANES; vector * LANES < tile.end; ++vector) {
            at[vector] = tile.values[vector];
            const int64_t begin = std::max<int64_t>(tile.begin - vector * LANES, 0), end = tile.end - vector * LANES;
            if (begin == 0 && end >= LANES) continue;
            for (int64_t place = 0; place < LANES; place += PACK<bf16>) {
                const uint32_t first = place >= begin && place < end ? 0xFFFFu : 0;
                const uint32_t second = place + 1 >= begin && place + 1 < end ? 0xFFFF0000u : 0;
                const int64_t row = place / PACK<bf16> * tile.value_stride;
                for (int64_t d = 0; d < tile.value_stride; d += LANES * PACK<bf16>)
                    store_bits(copy + row + d, load_bits<u32x16>(tile.values[vector] + row + d) & (first | second));
            }
            at[vector] = copy;
            copy += size;
        }
    }
};

// Values of int8 of a whole tile, words of a dimension side by side. What nobody looks at may be anything: weights are 0.
template <>
struct SeenValues<int8_t> {
    const int8_t* at;
    std::vector<int8_t> copies;

    void find(const SeenTile<int8_t>& tile) {
        const int64_t size = LANES / PACK<int8_t> * tile.value_stride, first = tile.begin / LANES, last = (tile.end + LANES - 1) / LANES;
        at = tile.values[first] - first * size;
        bool together = first == 0 && last == VECTORS;
        for (int64_t vector = first; vector < last; ++vector) together &= tile.values[vector] == at + vector * size;
        if (together) return;
        copies.resize(VECTORS * size);
        at = copies.data();
        for (int64_t vector = first; vector < last; ++vector) std::memcpy(copies.data() + vector * size, tile.values[vector], size);
    }
};

// Call `use` with each number from `first` to `last` - 1, of 0 to 3, as a type.
template <class Use>
inline __attribute__((always_inline)) void for_each_of_four(int64_t first, int64_t last, const Use& use) {
    if (first <= 0 && 0 < last) use(std::integral_constant<int, 0>());
    if (first <= 1 && 1 < last) use(std::integral_constant<int, 1>());
    if (first <= 2 && 2 < last) use(std::integral_constant<int, 2>());
    if (first <= 3 && 3 < last) use(std::integral_constant<int, 3>());
}

// Vectors of ROWS rows each, 16 / ROWS lanes of a row, become one of twice as many: both halves of a row's lanes, combined.
template <int ROWS, class Combine>
inline f32x16 halved(f32x16 one, f32x16 other, const Combine& combine) {
    constexpr int OWN = LANES / ROWS, NEW = OWN / 2;
    alignas(64) static constexpr auto PLACES = [] {
        std::array<std::array<int32_t, LANES>, 2> places{};
        for (int half = 0; half < 2; ++half)
            for (int lane = 0; lane < LANES; ++lane)
                places[half][lane] = lane / NEW / ROWS * LANES + lane / NEW % ROWS * OWN + half * NEW + lane % NEW;
        return places;
    }();
    const auto take = [&](int half) {
        return (f32x16)_mm512_permutex2var_ps((__m512)one, _mm512_load_si512(PLACES[half].data()), (__m512)other);
    };
    return combine(take(0), take(1));
}

// The lanes of each of 16 vectors, combined.
template <class Combine>
inline f32x16 combined(const f32x16* rows, const Combine& combine) {
    f32x16 two[8], four[4];
#pragma GCC unroll 8
    for (int number = 0; number < 8; ++number) two[number] = halved<1>(rows[2 * number], rows[2 * number + 1], combine);
#pragma GCC unroll 4
    for (int number = 0; number < 4; ++number) four[number] = halved<2>(two[2 * number], two[2 * number + 1], combine);
    return halved<8>(halved<4>(four[0], four[1], combine), halved<4>(four[2], four[3], combine), combine);
}

// Weights of a row as bytes of whole numbers: the upper bits, and after them the lower ones.
inline void put_bytes(const f32x16* weights, float inverse, int8_t* row) {
    alignas(64) static constexpr int32_t PLACES[LANES] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
    const auto pairs = [&](int vector) {
        return _mm512_packs_epi32((__m512i)whole(weights[vector] * inverse), (__m512i)whole(weights[vector + 1] * inverse));
    };
    const __m512i first = pairs(0), second = pairs(2), places = _mm512_load_si512(PLACES), lower = _mm512_set1_epi16((1 << WHOLE_BITS) - 1);
    const auto put = [&](__m512i one, __m512i other, int8_t* to) {  // the packed words of four vectors take turns
        _mm512_storeu_si512(to, _mm512_permutexvar_epi32(places, _mm512_packs_epi16(one, other)));
    };
    put(_mm512_srai_epi16(first, WHOLE_BITS), _mm512_srai_epi16(second, WHOLE_BITS), row);
    put(_mm512_and_si512(first, lower), _mm512_and_si512(second, lower), row + POSITIONS);
}

// As `soften`, for all rows at once: each lane is a row while their greatest scores change.
template <bool ALL, class K, class Factor>
inline void soften_together(f32x16 (*scores)[VECTORS], int64_t first, int64_t last, const Row<Factor>* rows, int64_t count,
                            const K& tile, const Shape& shape, const AttentionSpec& spec, State* states,
                            Factor (*weights)[FACTORS<Factor> * POSITIONS], float* units) {
    if (ALL) first = 0, last = VECTORS;
    f32x16 most[REGISTER_ROWS];
    alignas(64) float before[LANES], greatest[LANES], factors[LANES];
    for (int64_t row = 0; row < REGISTER_ROWS; ++row) {
        before[row] = row < count ? states[row].most() : 0;
        most[row] = row < count ? score(scores[row], first, last, rows[row], tile, 0, spec, splat(before[row])) : f32x16{};
    }
    const f32x16 now = combined(most, greater), differences = load(before) - now;
    store(greatest, now);
    if (any((i32x16)(differences != 0))) {
        store(factors, exp2(differences));
        for (int64_t row = 0; row < count; ++row)
            if (before[row] != greatest[row]) {
                states[row].fade(factors[row], shape);
                states[row].most() = greatest[row];
            }
    }
    for (int64_t row = 0; row < count; ++row) {
        float* totals = states[row].totals();
        u32x16 sizes = {};
        const auto put = [&](int64_t vector, f32x16 weight) {
            if constexpr (std::is_integral_v<Factor>) {
                scores[row][vector] = weight;
                sizes = larger(sizes, weight);
            } else {
                store(weights[row] + vector * LANES, weight);
            }
        };
        store(totals, exponentials(scores[row], first, last, greatest[row], tile, load(totals), put));
        most[row] = (f32x16)sizes;
    }
    if constexpr (std::is_integral_v<Factor>) {
        f32x16 largest = combined(most, [](f32x16 one, f32x16 other) { return (f32x16)larger((u32x16)one, other); });
        largest = select(largest < SMALLEST, f32x16{}, largest);
        store(units, largest / WHOLE);
        store(factors, select(largest == 0, f32x16{}, WHOLE / largest));
        for (int64_t row = 0; row < count; ++row) {
            for (int64_t vector = 0; vector < VECTORS && !ALL; ++vector)
                if (vector < first || vector >= last) scores[row][vector] = f32x16{};
            put_bytes(scores[row], factors[row], weights[row]);
        }
    }
}

// The places of a tile that some of `count` rows see.
template <class K, class Factor>
std::pair<int64_t, int64_t> seen_by(const Row<Factor>* rows, int64_t count, const K& tile) {
    int64_t shown = POSITIONS, end = 0;
    for (int64_t row = 0; row < count; ++row) {
        shown = std::min(shown, rows[row].shown);
        end = std::max(end, rows[row].end);
    }
    return {std::max(tile.begin, shown), end};
}

// Sums of queries with the keys of vectors `first` to `last` - 1, into their registers. `rest`: words of a last step.
template <class Unit, class Page, class F>
inline __attribute__((always_inline)) void score_by_units(const Page* queries, int64_t row_bytes, const SeenTile<Page>& tile, int64_t dim,
                                                          int64_t rest, int64_t first, int64_t last, F& fetch) {
    const int64_t key_bytes = tile.key_stride * sizeof(Page);
    const auto each = [&](const auto& use) __attribute__((always_inline)) { for_each_of_four(first, last, use); };
    each([](auto vector) { clear_register<SCORES + vector>(); });
    int64_t d = 0;
    for (; d + PACK<Page> * WHOLE_WORDS <= dim; d += PACK<Page> * WHOLE_WORDS) {
        load_register<WHOLE_ROWS>(queries + d, row_bytes);
        each([&](auto vector) {
            load_register<WHOLE_PAGE>(tile.keys[vector] + d / PACK<Page> * tile.key_stride, key_bytes);
            Unit::template multiply<SCORES + vector, WHOLE_ROWS, WHOLE_PAGE>();
            fetch.next();
        });
    }
    if (rest) {
        load_register<REST_ROWS>(queries + d, row_bytes);
        each([&](auto vector) {
            load_register<REST_PAGE>(tile.keys[vector] + d / PACK<Page> * tile.key_stride, key_bytes);
            Unit::template multiply<SCORES + vector, REST_ROWS, REST_PAGE>();
        });
    }
}

// `count` rows, at most 16, and one tile. `queries`: of the first row; those of each row are padded to whole vectors,
// `stride` numbers apart. The rows' states lie side by side.
template <class F>
void see_by_units(const Row<bf16>* rows, int64_t count, const bf16* queries, int64_t stride, const SeenTile<bf16>& tile,
                  const SeenValues<bf16>& values, const Shape& shape, const AttentionSpec& spec, State* states, MatrixUnits& units, F& fetch) {
    const auto [begin, end] = seen_by(rows, count, tile);
    if (begin >= end) return;
    const int64_t first = begin / LANES, last = (end + LANES - 1) / LANES, dim = shape.padded();
    units.shape(shapes_of_rows(count, HALF_WORDS));

    alignas(64) f32x16 scores[REGISTER_ROWS][VECTORS];
    score_by_units<UnitBFloat16>(queries, stride * sizeof(bf16), tile, dim, dim / PACK<bf16> % WHOLE_WORDS, first, last, fetch);
    for_each_of_four(first, last, [&](auto vector) { store_register<SCORES + vector>(&scores[0][vector], sizeof(scores[0])); });

    alignas(64) bf16 weights[REGISTER_ROWS][POSITIONS];
    float none[REGISTER_ROWS];
    const bool all = first == 0 && last == VECTORS;  // bounds that the compiler knows
    (all ? soften_together<true, SeenTile<bf16>, bf16> : soften_together<false, SeenTile<bf16>, bf16>)(
        scores, first, last, rows, count, tile, shape, spec, states, weights, none);

    const int64_t state_bytes = State::size(shape) * sizeof(float), value_bytes = tile.value_stride * sizeof(bf16);
    for (int64_t d = 0; d < shape.held; d += VECTORS * LANES) {
        const int64_t blocks = std::min<int64_t>(VECTORS, (shape.held - d) / LANES);
        const auto each_block = [&](const auto& use) __attribute__((always_inline)) { for_each_of_four(0, blocks, use); };
        float* held = states[0].values() + d;
        each_block([&](auto block) { load_register<SCORES + block>(held + block * LANES, state_bytes); });
        for (int64_t vector = first; vector < last; ++vector) {
            load_register<REST_ROWS>(weights[0] + vector * LANES, sizeof(weights[0]));
            each_block([&](auto block) {
                load_register<REST_PAGE>(values.at[vector] + (d + block * LANES) * PACK<bf16>, value_bytes);
                UnitBFloat16::multiply<SCORES + block, REST_ROWS, REST_PAGE>();
                fetch.next();
            });
        }
        each_block([&](auto block) { store_register<SCORES + block>(held + block * LANES, state_bytes); });
    }
}

// A sum with numbers of 14 bits, from those with their upper and their lower bits.
inline f32x16 whole_sum(const i32x16* upper, const i32x16* lower) { return convert<float>((*upper << WHOLE_BITS) + *lower); }

// The same with pages of int8. A register has 8 rows; memory of `queries` is read as if there were more of them.
template <class F>
void see_by_units(const Row<int8_t>* rows, int64_t count, const int8_t* queries, int64_t stride, const SeenTile<int8_t>& tile,
                  const SeenValues<int8_t>& values, const Shape& shape, const AttentionSpec& spec, State* states, MatrixUnits& units, F& fetch) {
    constexpr int64_t AT_ONCE = REGISTER_ROWS / 2;
    const auto [begin, end] = seen_by(rows, count, tile);
    if (begin >= end) return;
    const int64_t first = begin / LANES, last = (end + LANES - 1) / LANES, dim = shape.padded();
    const int64_t rest = dim / PACK<int8_t> % WHOLE_WORDS;
    units.shape(shapes_of_rows(2 * std::min(count, AT_ONCE), rest));

    alignas(64) i32x16 sums[REGISTER_ROWS][VECTORS];
    alignas(64) f32x16 scores[REGISTER_ROWS][VECTORS];
    const auto store_sums = [&](auto number) __attribute__((always_inline)) { store_register<SCORES + number>(&sums[0][number], sizeof(sums[0])); };
    for (int64_t row = 0; row < count; row += AT_ONCE) {
        score_by_units<UnitSigned>(queries + row * stride, stride / 2, tile, dim, rest, first, last, fetch);
        for_each_of_four(first, last, store_sums);
        for (int64_t own = row; own < std::min(count, row + AT_ONCE); ++own)
            for (int64_t vector = first; vector < last; ++vector)
                scores[own][vector] = whole_sum(&sums[2 * (own - row)][vector], &sums[2 * (own - row) + 1][vector]);
    }

    alignas(64) int8_t weights[REGISTER_ROWS][2 * POSITIONS];
    alignas(64) float weight_units[REGISTER_ROWS];
    const bool all = first == 0 && last == VECTORS;
    (all ? soften_together<true, SeenTile<int8_t>, int8_t> : soften_together<false, SeenTile<int8_t>, int8_t>)(
        scores, first, last, rows, count, tile, shape, spec, states, weights, weight_units);

    for (int64_t row = 0; row < count; row += AT_ONCE) {
        load_register<WHOLE_ROWS>(weights[row], POSITIONS);
        for (int64_t d = 0; d < shape.held; d += VECTORS * LANES) {
            const int64_t blocks = std::min<int64_t>(VECTORS, (shape.held - d) / LANES);
            for_each_of_four(0, blocks, [&](auto block) __attribute__((always_inline)) {
                clear_register<SCORES + block>();
                load_register<WHOLE_PAGE>(values.at + (d + block * LANES) * PACK<int8_t>, tile.value_stride);
                UnitSigned::multiply<SCORES + block, WHOLE_ROWS, WHOLE_PAGE>();
                fetch.next();
            });
            for_each_of_four(0, blocks, store_sums);
            for (int64_t own = row; own < std::min(count, row + AT_ONCE); ++own) {
                float* held = states[own].values() + d;
                for (int64_t block = 0; block < blocks; ++block, held += LANES)
                    store(held, load(held) + whole_sum(&sums[2 * (own - row)][block], &sums[2 * (own - row) + 1][block]) * weight_units[own]);
            }
        }
    }
}

}  // namespace
}  // namespace quire
#endif
