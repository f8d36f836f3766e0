// The layout of a weight that was packed once: panels of columns, words of k, groups with scales.
//
// Owns the places of a weight's values; knows no product. Invariant: every reader and writer of packed weights finds
// a value by what is here.
//
// Layout: panels of PANEL = 2 * LANES output columns. A panel is [k / per_word][2][LANES] 32-bit words; a word holds
// the weights of one column for the next 1 (float32), 2 (bfloat16), 4 (8 bits) or 8 (4 bits) k. Whole numbers have
// groups of 32 k with [groups][2][LANES] IEEE halves of scale, and for 4 bits as many of the least value. With
// `gated`, a panel is LANES columns of the first half of the weight's rows beside the same ones of the second half.
// A grid's panel is [pairs of k / per_word][2][2][LANES] words, a word holding every other k: two vectors give the
// pairs of LANES columns, see `grid_place`.
#pragma once
#include "pool.hpp"
#include "simd.hpp"

constexpr int PANEL = 2 * LANES;
constexpr int GROUP = 32;
// GRID: bfloat16 values kept as whole numbers too, see grid.hpp; INT: quantised ones, multiplied as such.
enum Format : int32_t { FLOAT32 = 0, BFLOAT16 = 1, INT8 = 2, INT4 = 3, GRID8 = 4, GRID4 = 5 };

struct Weight {  // columns: outputs, k: inputs; bias [columns] float32 or null; wide: a grid's bfloat16 panels
    const void *data, *wide;
    const uint16_t *scales, *least;
    const float *bias;
    int32_t format, columns, k, gated;
};

static inline int64_t up(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }
static inline bool has_groups(const Weight &w) { return w.format >= INT8; }
static inline bool has_least(const Weight &w) { return w.format == INT4 || w.format == GRID4; }
static inline bool has_bf16_inputs(const Weight &w) { return w.format == BFLOAT16 || w.format >= GRID8; }
static inline int per_word(const Weight &w) { return has_least(w) ? 8 : has_groups(w) ? 4 : w.format == BFLOAT16 ? 2 : 1; }
static inline int64_t words(const Weight &w) {
    int64_t k = has_groups(w) ? up(w.k, GROUP) : w.k;
    return up(k, per_word(w)) / per_word(w);
}
static inline int64_t groups(const Weight &w) { return up(w.k, GROUP) / GROUP; }
static inline int64_t panels(const Weight &w) {
    return w.gated ? up(w.columns / 2, LANES) / LANES : up(w.columns, PANEL) / PANEL;
}

// The row of the plain weight [columns, k] at a place of the packed one, or -1 for padding.
static inline int64_t source_row(const Weight &w, int64_t panel, int half, int lane) {
    if (!w.gated) {
        int64_t row = panel * PANEL + half * LANES + lane;
        return row < w.columns ? row : -1;
    }
    int64_t row = panel * LANES + lane, size = w.columns / 2;
    return row < size ? row + half * size : -1;
}

static inline Weight widened(const Weight &w) {  // a grid's weight as a plain one of bfloat16
    Weight plain = w;
    plain.data = w.wide, plain.format = BFLOAT16;
    return plain;
}

// Where the number of a grid for a lane's column and one k of a group lies, in words from the group's begin, and at
// which place of the word. One instruction rounds two vectors of floats to neighbouring bfloat16: with it the k of a
// pair are neighbours too (lanes 2c and 2c + 1 of a vector for LANES / 2 columns), without they are in two vectors.
#if defined(__AVX512BF16__)
constexpr bool TWINS = true;
#else
constexpr bool TWINS = false;
#endif
struct Place {
    int64_t word;
    int number;
};
static inline Place grid_place(const Weight &w, int half, int lane, int k) {
    const int pair = k / 2, per = per_word(w), odd = k % 2;
    const int vector = TWINS ? lane / (LANES / 2) : odd, at = TWINS ? lane % (LANES / 2) * 2 + odd : lane;
    return {((pair / per * 2 + half) * 2 + vector) * LANES + at, pair % per};
}

struct Tile {
    vfloat sum[2];
};
