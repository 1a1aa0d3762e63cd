// Rows of queries and one tile of bfloat16 by a processor's matrix units; see softmax.h.
//
// Pages have keys and values as the units take weights: 16 positions of pairs of dimensions, and 16 dimensions of pairs of
// positions. Up to 16 rows are multiplied at once.
#pragma once

#include <array>

#include "matrix_units.h"
#include "softmax.h"

#if QUIRE_MATRIX_UNITS

namespace quire {
namespace {

// Registers: sums of four vectors of positions or dimensions; operands of whole steps of 16 words, and of 8 words, which
// are what a vector of positions has.
enum { SCORES = 0, WHOLE_ROWS = 4, WHOLE_PAGE = 5, HALF_ROWS = 6, HALF_PAGE = 7 };
constexpr int64_t WHOLE_WORDS = 16, HALF_WORDS = 8;

inline RegisterShapes shapes_of_rows(int64_t rows) {
    RegisterShapes shapes;
    for (int number = 0; number < VECTORS; ++number) shapes.set(SCORES + number, rows, LANES);
    shapes.set(WHOLE_ROWS, rows, WHOLE_WORDS);
    shapes.set(WHOLE_PAGE, WHOLE_WORDS, LANES);
    shapes.set(HALF_ROWS, rows, HALF_WORDS);
    shapes.set(HALF_PAGE, HALF_WORDS, LANES);
    return shapes;
}

// A tile that matrix units compute with: they take all places from the first that is seen to the last.
struct SeenTile : Tile<bf16> {};

// Values of a tile with zeros where nobody looks: what lies there may be no numbers.
struct SeenValues {
    const bf16* at[VECTORS];
    std::vector<bf16> copies;

    void find(const Tile<bf16>& tile) {
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

// Call `use` with each number from `first` to `last` - 1, of 0 to 3, as a type.
template <class Use>
inline __attribute__((always_inline)) void for_each_of_four(int64_t first, int64_t last, const Use& use) {
    if (first <= 0 && 0 < last) use(std::integral_constant<int, 0>());
    if (first <= 1 && 1 < last) use(std::integral_constant<int, 1>());
    if (first <= 2 && 2 < last) use(std::integral_constant<int, 2>());
    if (first <= 3 && 3 < last) use(std::integral_constant<int, 3>());
}

// Vectors of ROWS rows each, 16 / ROWS lanes of a row, become one of twice as many: the greater of both halves of a row's lanes.
template <int ROWS>
inline f32x16 halved(f32x16 one, f32x16 other) {
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
    return greater(take(0), take(1));
}

// The greatest lane of each of 16 vectors.
inline f32x16 maxima(const f32x16* rows) {
    f32x16 two[8], four[4];
#pragma GCC unroll 8
    for (int number = 0; number < 8; ++number) two[number] = halved<1>(rows[2 * number], rows[2 * number + 1]);
#pragma GCC unroll 4
    for (int number = 0; number < 4; ++number) four[number] = halved<2>(two[2 * number], two[2 * number + 1]);
    return halved<8>(halved<4>(four[0], four[1]), halved<4>(four[2], four[3]));
}

// As `soften`, for all rows at once: each lane is a row while their greatest scores change.
template <bool ALL>
inline void soften_together(f32x16 (*scores)[VECTORS], int64_t first, int64_t last, const Row<bf16>* rows, int64_t count,
                            const Tile<bf16>& tile, const Shape& shape, const AttentionSpec& spec, State* states,
                            bf16 (*weights)[POSITIONS]) {
    if (ALL) first = 0, last = VECTORS;
    f32x16 most[REGISTER_ROWS];
    alignas(64) float before[LANES], greatest[LANES], factors[LANES];
    for (int64_t row = 0; row < REGISTER_ROWS; ++row) {
        before[row] = row < count ? states[row].most() : 0;
        most[row] = row < count ? score(scores[row], first, last, rows[row], tile, 0, spec, splat(before[row])) : f32x16{};
    }
    const f32x16 now = maxima(most), differences = load(before) - now;
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
        store(totals, exponentials(scores[row], first, last, greatest[row], tile, load(totals), weights[row]));
    }
}

// `count` rows, at most 16, and one tile. `queries`: of the first row; those of each row are padded to whole steps of 8 words,
// `stride` numbers apart. The rows' states lie side by side.
template <class F>
void see_by_units(const Row<bf16>* rows, int64_t count, const bf16* queries, int64_t stride, const Tile<bf16>& tile,
                  const SeenValues& values, const Shape& shape, const AttentionSpec& spec, State* states, MatrixUnits& units, F& fetch) {
    int64_t shown = POSITIONS, end = 0;
    for (int64_t row = 0; row < count; ++row) {
        shown = std::min(shown, rows[row].shown);
        end = std::max(end, rows[row].end);
    }
    const int64_t begin = std::max(tile.begin, shown);
    if (begin >= end) return;
    const int64_t first = begin / LANES, last = (end + LANES - 1) / LANES;
    units.shape(shapes_of_rows(count));

    const int64_t query_bytes = stride * sizeof(bf16), key_bytes = tile.key_stride * sizeof(bf16), dim = shape.padded();
    const auto each = [&](const auto& use) __attribute__((always_inline)) { for_each_of_four(first, last, use); };
    alignas(64) f32x16 scores[REGISTER_ROWS][VECTORS];
    each([](auto vector) { clear_register<SCORES + vector>(); });
    int64_t d = 0;
    for (; d + 2 * WHOLE_WORDS <= dim; d += 2 * WHOLE_WORDS) {
        load_register<WHOLE_ROWS>(queries + d, query_bytes);
        each([&](auto vector) {
            load_register<WHOLE_PAGE>(tile.keys[vector] + d / PACK<bf16> * tile.key_stride, key_bytes);
            UnitBFloat16::multiply<SCORES + vector, WHOLE_ROWS, WHOLE_PAGE>();
            fetch.next();
        });
    }
    if (d < dim) {
        load_register<HALF_ROWS>(queries + d, query_bytes);
        each([&](auto vector) {
            load_register<HALF_PAGE>(tile.keys[vector] + d / PACK<bf16> * tile.key_stride, key_bytes);
            UnitBFloat16::multiply<SCORES + vector, HALF_ROWS, HALF_PAGE>();
        });
    }
    each([&](auto vector) { store_register<SCORES + vector>(&scores[0][vector], sizeof(scores[0])); });

    alignas(64) bf16 weights[REGISTER_ROWS][POSITIONS];
    const bool all = first == 0 && last == VECTORS;  // bounds that the compiler knows
    (all ? soften_together<true> : soften_together<false>)(scores, first, last, rows, count, tile, shape, spec, states, weights);

    const int64_t state_bytes = State::size(shape) * sizeof(float), value_bytes = tile.value_stride * sizeof(bf16);
    for (d = 0; d < shape.held; d += VECTORS * LANES) {
        const int64_t blocks = std::min<int64_t>(VECTORS, (shape.held - d) / LANES);
        const auto each_block = [&](const auto& use) __attribute__((always_inline)) { for_each_of_four(0, blocks, use); };
        float* held = states[0].values() + d;
        each_block([&](auto block) { load_register<SCORES + block>(held + block * LANES, state_bytes); });
        for (int64_t vector = first; vector < last; ++vector) {
            load_register<HALF_ROWS>(weights[0] + vector * LANES, sizeof(weights[0]));
            each_block([&](auto block) {
                load_register<HALF_PAGE>(values.at[vector] + (d + block * LANES) * PACK<bf16>, value_bytes);
                UnitBFloat16::multiply<SCORES + block, HALF_ROWS, HALF_PAGE>();
                fetch.next();
            });
        }
        each_block([&](auto block) { store_register<SCORES + block>(held + block * LANES, state_bytes); });
    }
}

}  // namespace
}  // namespace quire
#endif
