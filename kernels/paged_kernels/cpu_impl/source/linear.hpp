// Products of a few or many rows of activations with a weight that was packed once: float32, bfloat16, int8, 4-bit.
//
// Owns the register tiles and the loop over them; knows no model. Invariant: an output's sum runs over k in one
// order, whatever the number of rows, so that a row's result does not depend on its batch in a single bit.
#pragma once
#include "grid.hpp"

constexpr int64_t NEAR_BYTES = 400 << 10;  // activations that a core's second cache keeps beside a panel
constexpr int FEW_ROWS = LANES == 16 ? 8 : 2;  // up to here a grid's weights are made in registers for one tile

template <int ROWS> static inline void tile_float32(Tile *tile, const Weight &w, int64_t panel, const float *x, int64_t ldx) {
    const float *at = (const float *)w.data + panel * words(w) * PANEL;
    vfloat acc[ROWS][2] = {};
    for (int64_t k = 0; k < w.k; k++, at += PANEL) {
        vfloat w0 = load<vfloat>(at), w1 = load<vfloat>(at + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            float value = x[r * ldx + k];
            acc[r][0] += w0 * value;
            acc[r][1] += w1 * value;
        }
    }
    for (int r = 0; r < ROWS; r++) tile[r] = {{acc[r][0], acc[r][1]}};
}

template <int ROWS> static inline void tile_bfloat16(Tile *tile, const Weight &w, int64_t panel, const bf16 *x, int64_t ldx) {
    int64_t count = words(w);
    const uint32_t *at = (const uint32_t *)w.data + panel * count * PANEL;
    vfloat acc[ROWS][2] = {};
    for (int64_t k = 0; k < count; k++, at += PANEL) {
        vuint w0 = load<vuint>(at), w1 = load<vuint>(at + LANES);
#pragma GCC unroll 16
        for (int r = 0; r < ROWS; r++) {
            uint32_t pair;
            std::memcpy(&pair, x + r * ldx + 2 * k, 4);
            acc[r][0] = dot_pairs(acc[r][0], w0, pair);
            acc[r][1] = dot_pairs(acc[r][1], w1, pair);
        }
    }
    for (int r = 0; r < ROWS; r++) tile[r] = {{acc[r][0], acc[r][1]}};
}

// Quantised: a group's whole numbers are summed with x first, then scaled. 4-bit: plus the least value times sum x.
template <int BITS, int ROWS>
static inline void tile_quantised(Tile *tile, const Weight &w, int64_t panel, const float *x, int64_t ldx) {
    constexpr int PER = 32 / BITS, WORDS = GROUP / PER;
    const int64_t count = groups(w);
    const uint32_t *at = (const uint32_t *)w.data + panel * words(w) * PANEL;
    const uint16_t *scale = w.scales + panel * count * PANEL;
    const uint16_t *least = BITS == 4 ? w.least + panel * count * PANEL : nullptr;
    vfloat acc[ROWS][2] = {};
    for (int64_t g = 0; g < count; g++, scale += PANEL) {
        vfloat part[ROWS][2] = {};
        float total[ROWS] = {};
        const float *xg = x + g * GROUP;
        for (int word = 0; word < WORDS; word++, at += PANEL) {
            vuint w0 = load<vuint>(at), w1 = load<vuint>(at + LANES);
#pragma GCC unroll 8
            for (int j = 0; j < PER; j++) {
                vfloat f0, f1;
                if (BITS == 8) {
                    f0 = __builtin_convertvector(bits<vint>(w0 << (24 - 8 * j)) >> 24, vfloat);
                    f1 = __builtin_convertvector(bits<vint>(w1 << (24 - 8 * j)) >> 24, vfloat);
                } else {
                    f0 = __builtin_convertvector(bits<vint>((w0 >> (4 * j)) & 15), vfloat);
                    f1 = __builtin_convertvector(bits<vint>((w1 >> (4 * j)) & 15), vfloat);
                }
#pragma GCC unroll 8
                for (int r = 0; r < ROWS; r++) {
                    float value = xg[r * ldx + word * PER + j];
                    part[r][0] += f0 * value;
                    part[r][1] += f1 * value;
                    if (BITS == 4) total[r] += value;
                }
            }
        }
        for (int h = 0; h < 2; h++) {
            vfloat s = from_half(load<vhalf>(scale + h * LANES));
            for (int r = 0; r < ROWS; r++) acc[r][h] += s * part[r][h];
            if (BITS == 4) {
                vfloat low = from_half(load<vhalf>(least + h * LANES));
                for (int r = 0; r < ROWS; r++) acc[r][h] += low * total[r];
            }
        }
        if (BITS == 4) least += PANEL;
    }
    for (int r = 0; r < ROWS; r++) tile[r] = {{acc[r][0], acc[r][1]}};
}

template <int FORMAT, int ROWS, class X>
static inline void tile_of(Tile *tile, const Weight &w, int64_t panel, const X *x, int64_t ldx) {
    if constexpr (FORMAT == FLOAT32) tile_float32<ROWS>(tile, w, panel, x, ldx);
    if constexpr (FORMAT == BFLOAT16) tile_bfloat16<ROWS>(tile, w, panel, x, ldx);
    if constexpr (FORMAT == GRID8) tile_grid<8, ROWS>(tile, w, panel, x, ldx);
    if constexpr (FORMAT == GRID4) tile_grid<4, ROWS>(tile, w, panel, x, ldx);
    if constexpr (FORMAT == INT8) tile_quantised<8, ROWS>(tile, w, panel, x, ldx);
    if constexpr (FORMAT == INT4) tile_quantised<4, ROWS>(tile, w, panel, x, ldx);
}

template <int FORMAT> constexpr int rows_of_tile() {
    if (FORMAT == GRID8 || FORMAT == GRID4) return FEW_ROWS;
    return FORMAT == INT8 || FORMAT == INT4 ? (TILE_ROWS >= 8 ? 4 : 2) : TILE_ROWS;
}

template <int FORMAT, class X, int ROWS>
static void any_tile(int rows, Tile *tile, const Weight &w, int64_t panel, const X *x, int64_t ldx) {
    if (rows == ROWS)
        tile_of<FORMAT, ROWS>(tile, w, panel, x, ldx);
    else if constexpr (ROWS > 1)
        any_tile<FORMAT, X, ROWS - 1>(rows, tile, w, panel, x, ldx);
}

// done(row, panel, tile) gets every tile of x [rows, k] (row stride ldx elements, k padded with zeros to whole words
// and groups) times the weight, without bias.
template <int FORMAT, class X, class Done>
static void multiply_as(const Weight &w, const X *x, int64_t ldx, int64_t rows, const Done &done) {
    constexpr int MOST = rows_of_tile<FORMAT>();
    const int64_t blocks = (rows + MOST - 1) / MOST, count = panels(w), team = pool().threads();
    int64_t shares = (rows * ldx * (int64_t)sizeof(X) + NEAR_BYTES - 1) / NEAR_BYTES;  // parts of the rows that stay near
    while (count * shares < 8 * team && shares * 2 <= blocks) shares *= 2;
    if (shares > blocks) shares = blocks;
    pool().run(count * shares, [&](int64_t task) {
        const int64_t panel = task % count, share = task / count;
        Tile tile[MOST];
        for (int64_t b = blocks * share / shares; b < blocks * (share + 1) / shares; b++) {
            const int64_t first = rows * b / blocks, last = rows * (b + 1) / blocks;
            any_tile<FORMAT, X, MOST>(int(last - first), tile, w, panel, x + first * ldx, ldx);
            for (int64_t r = first; r < last; r++) done(r, panel, tile[r - first]);
        }
    });
}

template <class X, class Done>
static void multiply(const Weight &w, const X *x, int64_t ldx, int64_t rows, const Done &done) {
    if constexpr (sizeof(X) == 2) {
        if (w.format == BFLOAT16) return multiply_as<BFLOAT16>(w, x, ldx, rows, done);
        if (rows > FEW_ROWS) return multiply_as<BFLOAT16>(widened(w), x, ldx, rows, done);
        if (w.format == GRID8) multiply_as<GRID8>(w, x, ldx, rows, done);
        if (w.format == GRID4) multiply_as<GRID4>(w, x, ldx, rows, done);
    } else {
        if (w.format == FLOAT32) multiply_as<FLOAT32>(w, x, ldx, rows, done);
        if (w.format == INT8) multiply_as<INT8>(w, x, ldx, rows, done);
        if (w.format == INT4) multiply_as<INT4>(w, x, ldx, rows, done);
    }
}

// Calls put(column, count, value) with a tile's two vectors, bias added; count <= LANES columns are real.
template <class Put> static inline void each_half(const Weight &w, int64_t panel, const Tile &tile, const Put &put) {
    for (int h = 0; h < 2; h++) {
        const int64_t column = panel * PANEL + h * LANES, left = w.columns - column;
        if (left <= 0) return;
        vfloat value = tile.sum[h];
        if (w.bias) {
            float bias[LANES] = {};
            std::memcpy(bias, w.bias + column, sizeof(float) * (left < LANES ? left : LANES));
            value += load<vfloat>(bias);
        }
        put(column, left < LANES ? left : LANES, value);
    }
}

template <class T> static inline void store_part(T *to, vfloat value, int64_t count) {
    if (count == LANES) return store_floats(to, value);
    T lanes[LANES];
    store_floats(lanes, value);
    std::memcpy(to, lanes, sizeof(T) * count);
}

static inline vfloat load_part(const float *from, int64_t count) {
    if (count == LANES) return load<vfloat>(from);
    float lanes[LANES] = {};
    std::memcpy(lanes, from, sizeof(float) * count);
    return load<vfloat>(lanes);
}
