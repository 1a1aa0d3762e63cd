// Products of panels (panels.h) by a processor's matrix units.
#pragma once

#include "epilogue.h"
#include "matrix.h"

#if QUIRE_MATRIX_UNITS

namespace quire {

constexpr int64_t STEP_WORDS = 16;              // words of a row that the units multiply at once
constexpr int64_t STEP = STEP_WORDS * COLUMNS;  // words of a panel

// Registers of a tile: sums of its first 16 rows and of its last 16 with the left and the right half of a panel; these rows;
// and these halves.
enum Registers { PRODUCTS = 0, ROWS_OF_X = 4, HALVES = 6 };

// Rows of x as the units read them: in tiles of MOST_ROWS rows, whose words of one step lie side by side. A few rows may
// also be where they are.
struct UnitRows {
    const uint32_t* words;
    int64_t count;
    int64_t row, step, tile;  // words from one row, step and tile to the next

    int64_t tiles() const { return (count + MOST_ROWS - 1) / MOST_ROWS; }
    int rows_of(int64_t tile) const { return int(std::min<int64_t>(MOST_ROWS, count - tile * MOST_ROWS)); }
};

// Contiguous rows of `bytes` bytes. Those of missing words are zero.
inline UnitRows in_steps(const void* x, int64_t count, int64_t bytes) {
    constexpr int64_t BYTES = sizeof(uint32_t) * STEP_WORDS;
    const int64_t steps = (bytes + BYTES - 1) / BYTES, words = steps * STEP_WORDS;
    if (count <= MOST_ROWS && bytes % BYTES == 0) return {static_cast<const uint32_t*>(x), count, words, STEP_WORDS, 0};
    UnitRows rows{nullptr, count, STEP_WORDS, MOST_ROWS * STEP_WORDS, MOST_ROWS * words};
    auto* memory = reinterpret_cast<uint8_t*>(scratch(rows.tiles() * rows.tile + STEP_WORDS));
    auto* copy = reinterpret_cast<uint32_t*>(memory + (-reinterpret_cast<uintptr_t>(memory) & (BYTES - 1)));
    rows.words = copy;
    prepare((count + REGISTER_ROWS - 1) / REGISTER_ROWS, [&](int64_t block, int) {
        for (int64_t row = block * REGISTER_ROWS; row < (block + 1) * REGISTER_ROWS && row < count; ++row) {
            const uint8_t* from = static_cast<const uint8_t*>(x) + row * bytes;
            uint32_t* to = copy + row / MOST_ROWS * rows.tile + row % MOST_ROWS * rows.row;
            int64_t at = 0;
            for (; at + BYTES <= bytes; at += BYTES, to += rows.step) store_bits(to, load_bits<u32x16>(from + at));
            if (at < bytes) {
                store_bits(to, u32x16{});
                std::memcpy(to, from + at, bytes - at);
            }
        }
    });
    return rows;
}

// The registers' shapes for a tile of `rows` rows.
inline RegisterShapes shapes_of(int rows) {
    const int each = std::min(rows, REGISTER_ROWS);
    RegisterShapes shapes;
    for (int number = 0; number < 4; ++number) shapes.set(PRODUCTS + number, each, LANES);
    for (int number = 0; number < 2; ++number) {
        shapes.set(ROWS_OF_X + number, each, STEP_WORDS);
        shapes.set(HALVES + number, STEP_WORDS, LANES);
    }
    return shapes;
}

// The product of a tile of rows with a panel. BOTH: it has more rows than a register. Then the second registers have its last
// 16 rows, and some rows may be multiplied twice.
template <class Unit, bool BOTH>
struct UnitTile {
    using Sum = typename Unit::Sum;
    const int64_t row, step;  // as in UnitRows
    const int64_t second;     // first row of the second registers

    UnitTile(const UnitRows& x, int rows) : row(x.row), step(x.step), second(rows - REGISTER_ROWS) {}

    // Add the products of `steps` steps to the sums. SHARE: words to prefetch from `later` on for each step.
    template <int SHARE>
    void multiply(const uint32_t* x, const uint32_t* panel, int64_t steps, const uint32_t* later) const {
        constexpr int64_t panel_bytes = COLUMNS * sizeof(uint32_t);
        const int64_t row_bytes = row * sizeof(uint32_t), next = second * row;
        for (const uint32_t* end = panel + steps * STEP; panel < end; x += step, panel += STEP, later += SHARE) {
#pragma GCC unroll 32
            for (int at = 0; at < SHARE; at += LANES) __builtin_prefetch(later + at, 0, SHARE < STEP ? 2 : 3);
            load_register<HALVES>(panel, panel_bytes);
            load_register<ROWS_OF_X>(x, row_bytes);
            Unit::template multiply<PRODUCTS, ROWS_OF_X, HALVES>();
            load_register<HALVES + 1>(panel + LANES, panel_bytes);
            Unit::template multiply<PRODUCTS + 1, ROWS_OF_X, HALVES + 1>();
            if constexpr (BOTH) {
                load_register<ROWS_OF_X + 1>(x + next, row_bytes);
                Unit::template multiply<PRODUCTS + 2, ROWS_OF_X + 1, HALVES>();
                Unit::template multiply<PRODUCTS + 3, ROWS_OF_X + 1, HALVES + 1>();
            }
        }
    }
    void clear() const {
        clear_register<PRODUCTS>();
        clear_register<PRODUCTS + 1>();
        if constexpr (BOTH) clear_register<PRODUCTS + 2>(), clear_register<PRODUCTS + 3>();
    }
    void load(const Tile<Sum>& tile) const {
        load_register<PRODUCTS>(&tile.sums[0][0], sizeof(tile.sums[0]));
        load_register<PRODUCTS + 1>(&tile.sums[0][1], sizeof(tile.sums[0]));
        if constexpr (BOTH) load_register<PRODUCTS + 2>(&tile.sums[second][0], sizeof(tile.sums[0]));
        if constexpr (BOTH) load_register<PRODUCTS + 3>(&tile.sums[second][1], sizeof(tile.sums[0]));
    }
    void store(Tile<Sum>& tile) const {
        store_register<PRODUCTS>(&tile.sums[0][0], sizeof(tile.sums[0]));
        store_register<PRODUCTS + 1>(&tile.sums[0][1], sizeof(tile.sums[0]));
        if constexpr (BOTH) store_register<PRODUCTS + 2>(&tile.sums[second][0], sizeof(tile.sums[0]));
        if constexpr (BOTH) store_register<PRODUCTS + 3>(&tile.sums[second][1], sizeof(tile.sums[0]));
    }
};

// As `for_each_tile`. Of many rows PART_TILES tiles and PART_STEPS steps at a time stay in the L2 cache, while all panels
// pass, of which CHUNK_STEPS steps at a time stay in the L1 cache.
template <class Unit, class Finish>
void for_each_tile_of_units(const Matrix& matrix, const Output& output, const UnitRows& x, const Finish& finish) {
    const uint32_t* panels = matrix.panels;
    const int64_t count = matrix.count(), words = matrix.words(), number_size = matrix.writes_float32() ? sizeof(float) : sizeof(bf16);
    using Sum = typename Unit::Sum;
    constexpr int64_t PART_TILES = 8, PART_STEPS = 64, CHUNK_STEPS = 9;
    constexpr int SHARE = STEP / PART_TILES;
    const int64_t size = words * COLUMNS, steps = (words + STEP_WORDS - 1) / STEP_WORDS, whole = words / STEP_WORDS;
    const int64_t tiles = x.tiles(), parts = (tiles + PART_TILES - 1) / PART_TILES;
    const bool alone = tiles == 1;
    const int64_t spans = alone ? 1 : (steps + PART_STEPS - 1) / PART_STEPS;
    Tile<Sum>* kept = nullptr;
    if (spans > 1) {
        static thread_local std::vector<Tile<Sum>> memory;
        if (int64_t(memory.size()) < count * PART_TILES) memory.resize(count * PART_TILES);
        kept = memory.data();
    }
    for (int64_t number = 0; number < parts * spans; ++number) {
        const int64_t part = number / spans, span = number % spans;
        const int64_t first = part * tiles / parts, last = (part + 1) * tiles / parts;
        const int64_t begin = span * steps / spans, end = (span + 1) * steps / spans;
        parallel_for<MatrixUnits>(count, [&](int64_t panel, int, MatrixUnits& units) {
            const uint32_t* weights = panels + panel * size;
            Tile<Sum> own[PART_TILES];
            Tile<Sum>* sums = spans == 1 ? own : kept + panel * PART_TILES;
            alignas(64) uint32_t rest[STEP];
            if (end > whole) std::fill(std::copy(weights + whole * STEP, weights + size, rest), rest + STEP, 0);
            const int64_t chunks = alone ? 1 : (end - begin + CHUNK_STEPS - 1) / CHUNK_STEPS;
            for (int64_t chunk = 0; chunk < chunks; ++chunk) {
                const int64_t from = begin + chunk * (end - begin) / chunks, to = begin + (chunk + 1) * (end - begin) / chunks;
                const int64_t full = std::min(to, whole) - from;
                for (int64_t tile = first; tile < last; ++tile) {
                    const int rows = x.rows_of(tile);
                    units.shape(shapes_of(rows));
                    if (to == steps) fetch(output, panel, tile * MOST_ROWS, rows, number_size);
                    const auto compute = [&](auto both) {
                        const UnitTile<Unit, decltype(both)::value> product(x, rows);
                        const uint32_t *numbers = x.words + tile * x.tile + from * x.step, *now = weights + from * STEP;
                        from ? product.load(sums[tile - first]) : product.clear();
                        if (alone)
                            product.template multiply<STEP>(numbers, now, full, now + AHEAD);
                        else
                            product.template multiply<SHARE>(numbers, now, full, now + size + (tile - first) * full * SHARE);
                        if (to > whole) product.template multiply<0>(numbers + full * x.step, rest, 1, rest);
                        product.store(sums[tile - first]);
                    };
                    rows > REGISTER_ROWS ? compute(std::true_type()) : compute(std::false_type());
                    if (to == steps) finish(panel, tile * MOST_ROWS, rows, sums[tile - first]);
                }
            }
        });
    }
}

}  // namespace quire
#endif
