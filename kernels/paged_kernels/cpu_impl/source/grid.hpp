// bfloat16 weights kept as whole numbers of 4 or 8 bits on their groups' grids too, for few rows: made in registers,
// a third of the bytes is read.
//
// Owns the way from a grid's number to its bfloat16; knows no model. Invariant: a weight is kept so only where every
// value comes out as the very bits of its bfloat16, so that a product is the same as with plain bfloat16 weights.
#pragma once
#include "packed.hpp"

// float(number `at`) of each lane's word: 4 bits without a sign, 8 with one.
template <int BITS> static inline vfloat number_of(vuint word, int at) {
    if (BITS == 8) return __builtin_convertvector(bits<vint>(word << (24 - 8 * at)) >> 24, vfloat);
#if defined(__AVX512F__)
    const vfloat numbers = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};  // a permutation reads 4 bits of an index
    return (vfloat)_mm512_permutexvar_ps((__m512i)(word >> (4 * at)), (__m512)numbers);
#else
    return __builtin_convertvector(bits<vint>((word >> (4 * at)) & 15), vfloat);
#endif
}

// The bfloat16 of `low` in the lower lanes, of `high` in the upper ones: where TWINS, a lane then holds a pair of k.
// Else the pairs of k, `low` in the lower halves.
static inline vuint pairs_of(vfloat low, vfloat high) {
#if defined(__AVX512BF16__)
    return (vuint)_mm512_cvtne2ps_pbh((__m512)high, (__m512)low);
#else
    auto rounded = [](vfloat v) {  // to nearest, ties to even, in the upper half; finite values
        vuint u = bits<vuint>(v);
        return u + 0x7fff + ((u >> 16) & 1);
    };
    return (rounded(high) & 0xffff0000u) | (rounded(low) >> 16);
#endif
}

// A group's scales, or least values, of one half as its two vectors of numbers need them.
static inline void spread(vfloat *to, const uint16_t *from) {
    const vfloat one = from_half(load<vhalf>(from));
#if defined(__AVX512BF16__)
    const __m512i low = _mm512_set_epi32(7, 7, 6, 6, 5, 5, 4, 4, 3, 3, 2, 2, 1, 1, 0, 0);
    to[0] = (vfloat)_mm512_permutexvar_ps(low, (__m512)one);
    to[1] = (vfloat)_mm512_permutexvar_ps(_mm512_add_epi32(low, _mm512_set1_epi32(8)), (__m512)one);
#else
    to[0] = to[1] = one;
#endif
}

// Calls use(pair, first, second) with the bfloat16 pairs of a panel's two halves, in the order of k.
template <int BITS, class Use> static inline void each_pair(const Weight &w, int64_t panel, const Use &use) {
    constexpr int PER = 32 / BITS, PAIRS = GROUP / 2;
    const int64_t count = groups(w);
    const uint32_t *at = (const uint32_t *)w.data + panel * words(w) * PANEL;
    const uint16_t *scale = w.scales + panel * count * PANEL;
    const uint16_t *least = BITS == 4 ? w.least + panel * count * PANEL : nullptr;
    for (int64_t g = 0; g < count; g++, scale += PANEL) {
        vfloat step[4], low[4] = {};
        for (int h = 0; h < 2; h++) {
            spread(step + 2 * h, scale + h * LANES);
            if (BITS == 4) spread(low + 2 * h, least + h * LANES);
        }
        if (BITS == 4) least += PANEL;
        for (int word = 0; word < PAIRS / PER; word++, at += 4 * LANES) {
            vuint numbers[4];
            for (int v = 0; v < 4; v++) numbers[v] = load<vuint>(at + v * LANES);
#pragma GCC unroll 8
            for (int j = 0; j < PER; j++) {
                vfloat value[4];
#pragma GCC unroll 4
                for (int v = 0; v < 4; v++) value[v] = number_of<BITS>(numbers[v], j) * step[v] + low[v];
                use(g * PAIRS + word * PER + j, pairs_of(value[0], value[1]), pairs_of(value[2], value[3]));
            }
        }
    }
}

template <int BITS, int ROWS> static inline void tile_grid(Tile *tile, const Weight &w, int64_t panel, const bf16 *x, int64_t ldx) {
    vfloat acc[ROWS][2] = {};
    each_pair<BITS>(w, panel, [&](int64_t k, vuint first, vuint second) __attribute__((always_inline)) {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            uint32_t pair;
            std::memcpy(&pair, x + r * ldx + 2 * k, 4);
            acc[r][0] = dot_pairs(acc[r][0], first, pair);
            acc[r][1] = dot_pairs(acc[r][1], second, pair);
        }
    });
    for (int r = 0; r < ROWS; r++) tile[r] = {{acc[r][0], acc[r][1]}};
}
