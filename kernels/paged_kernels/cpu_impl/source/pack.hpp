// From a plain float32 weight [columns, k] to the packed layouts of packed.hpp, quantising on the way.
//
// Owns rounding and grouping; knows no product. Invariant: a weight that already lies on the grid of its group (as
// one read from a Q8_0 or Q4_1 file does) comes through exactly, within the rounding of its scale to a half.
#pragma once
#include <atomic>
#include <cmath>

#include "packed.hpp"

static inline uint16_t to_half(float x) {  // to nearest, ties to even; beyond the largest half: infinity
    uint32_t u = bits<uint32_t>(x), sign = (u >> 16) & 0x8000, size = u & 0x7fffffff;
    if (size >= 0x47800000) return uint16_t(sign | (size > 0x7f800000 ? 0x7e00 : 0x7c00));
    if (size < 0x38800000) {  // subnormal: let float addition round
        float shifted = bits<float>(size) + 0.5f;
        return uint16_t(sign | (bits<uint32_t>(shifted) - 0x3f000000));
    }
    size += 0xc8000fff + ((size >> 13) & 1);
    return uint16_t(sign | (size >> 13));
}

static inline float half_value(uint16_t h) {
    vhalf v = {};
    v[0] = h;
    return from_half(v)[0];
}

// One group of 32 weights as whole numbers; returns the scale, and through `least` the value of 0.
static inline float quantise_int8(const float *from, int64_t count, int *numbers) {
    float most = 0;
    for (int64_t i = 0; i < count; i++) most = std::fabs(from[i]) > most ? std::fabs(from[i]) : most;
    float scale = half_value(to_half(most / 127));
    for (int64_t i = 0; i < count; i++) {
        float n = scale > 0 ? std::nearbyint(from[i] / scale) : 0;
        numbers[i] = int(n > 127 ? 127 : n > -127 ? n : -127);
    }
    return scale;
}

static inline float quantise_int4(const float *from, int64_t count, int *numbers, float *least) {
    float low = from[0], high = from[0];
    for (int64_t i = 1; i < count; i++) {
        low = from[i] < low ? from[i] : low;
        high = from[i] > high ? from[i] : high;
    }
    *least = half_value(to_half(low));
    float scale = half_value(to_half((high - low) / 15));
    for (int64_t i = 0; i < count; i++) {
        float n = scale > 0 ? std::nearbyint((from[i] - *least) / scale) : 0;
        numbers[i] = int(n > 15 ? 15 : n > 0 ? n : 0);
    }
    return scale;
}

static inline void pack_plain(const Weight &w, const float *from, int64_t panel, int half, int lane) {
    const int64_t row = source_row(w, panel, half, lane), count = words(w);
    const int64_t place = panel * count * PANEL + half * LANES + lane;
    for (int64_t word = 0; word < count; word++) {
        uint32_t value = 0;
        if (row >= 0 && w.format == FLOAT32) value = bits<uint32_t>(from[row * w.k + word]);
        if (row >= 0 && w.format == BFLOAT16) {
            const float *pair = from + row * w.k + 2 * word;
            value = to_bf16(pair[0]) | (2 * word + 1 < w.k ? uint32_t(to_bf16(pair[1])) << 16 : 0);
        }
        ((uint32_t *)w.data)[place + word * PANEL] = value;
    }
}

// Whether the numbers of a group give back every value's bfloat16, bit by bit.
static inline bool on_grid(const float *values, int64_t count, const int *numbers, float scale, float least) {
    for (int64_t i = 0; i < count; i++)
        if (to_bf16(numbers[i] * scale + least) != to_bf16(values[i])) return false;
    return true;
}

static inline bool pack_groups(const Weight &w, const float *from, int64_t panel, int half, int lane) {
    const int64_t row = source_row(w, panel, half, lane), count = groups(w);
    const int per = per_word(w), width = 32 / per;
    const uint32_t mask = (1u << width) - 1;
    const int64_t words_a_group = GROUP / per * PANEL;
    uint32_t *to = (uint32_t *)w.data + panel * words(w) * PANEL;
    for (int64_t g = 0; g < count; g++) {
        const int64_t first = g * GROUP, real = row < 0 ? 0 : (w.k - first < GROUP ? w.k - first : GROUP);
        int numbers[GROUP] = {};
        float scale = 0, least = 0;
        if (real > 0) {
            const float *values = from + row * w.k + first;
            scale = has_least(w) ? quantise_int4(values, real, numbers, &least) : quantise_int8(values, real, numbers);
            if (w.format >= GRID8 && !on_grid(values, real, numbers, scale, least)) return false;
        }
        const int64_t place = (panel * count + g) * PANEL + half * LANES + lane;
        ((uint16_t *)w.scales)[place] = to_half(scale);
        if (has_least(w)) ((uint16_t *)w.least)[place] = to_half(least);
        for (int k = 0; k < GROUP; k++) {
            Place at = {(k / per * 2 + half) * LANES + lane, k % per};
            if (w.format >= GRID8) at = grid_place(w, half, lane, k);
            to[g * words_a_group + at.word] |= (uint32_t(numbers[k]) & mask) << (at.number * width);
        }
    }
    return true;
}

// False when the weight does not lie on the grid that its format names; it is of no use then.
static inline bool pack(const Weight &w, const float *from) {
    std::atomic<bool> fits{true};
    const Weight plain = has_groups(w) ? widened(w) : w;
    pool().run(panels(w), [&](int64_t panel) {
        if (has_groups(w)) std::memset((uint32_t *)w.data + panel * words(w) * PANEL, 0, sizeof(uint32_t) * words(w) * PANEL);
        for (int half = 0; half < 2; half++)
            for (int lane = 0; lane < LANES && fits.load(std::memory_order_relaxed); lane++) {
                if (plain.data) pack_plain(plain, from, panel, half, lane);
                if (has_groups(w) && !pack_groups(w, from, panel, half, lane)) fits.store(false);
            }
    });
    return fits.load();
}
