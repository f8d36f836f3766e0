// Vectors of the widest register that the compiler was told of, bfloat16 conversion, and exp.
//
// Owns the choice of width and everything that depends on an instruction set; knows no tensor. Invariant: a NaN
// that goes in comes out as a NaN, and a lane's result depends on that lane alone.
#pragma once
#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#if defined(__AVX512F__)
constexpr int LANES = 16;
constexpr int TILE_ROWS = 12;
#elif defined(__AVX2__)
constexpr int LANES = 8;
constexpr int TILE_ROWS = 4;
#else
constexpr int LANES = 4;
constexpr int TILE_ROWS = 8;
#endif

typedef float vfloat __attribute__((vector_size(LANES * 4)));
typedef int32_t vint __attribute__((vector_size(LANES * 4)));
typedef uint32_t vuint __attribute__((vector_size(LANES * 4)));
typedef uint16_t vhalf __attribute__((vector_size(LANES * 2)));
typedef uint16_t bf16;

template <class V, class T> static inline V load(const T *from) {
    V v;
    std::memcpy(&v, from, sizeof(V));
    return v;
}

template <class V, class T> static inline void store(T *to, V v) { std::memcpy(to, &v, sizeof(V)); }

template <class To, class From> static inline To bits(From v) {
    static_assert(sizeof(To) == sizeof(From), "a change of type, not of size");
    To to;
    std::memcpy(&to, &v, sizeof(To));
    return to;
}

static inline vfloat splat(float x) { return x - vfloat{}; }

static inline vfloat choose(vint mask, vfloat yes, vfloat no) {
    return bits<vfloat>((mask & bits<vint>(yes)) | (~mask & bits<vint>(no)));
}

static inline vfloat greater(vfloat a, vfloat b) { return choose(a > b, a, b); }

// LANES rows of LANES 32-bit words become columns: log2 LANES rounds of exchanges between rows d apart.
#if defined(__clang__)
template <int D, int... I> static inline vuint low_halves(vuint a, vuint b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (I & D ? LANES + I - D : I)...);
}
template <int D, int... I> static inline vuint high_halves(vuint a, vuint b, std::integer_sequence<int, I...>) {
    return __builtin_shufflevector(a, b, (I & D ? LANES + I : I + D)...);
}
#else
template <int D, int... I> static inline vuint low_halves(vuint a, vuint b, std::integer_sequence<int, I...>) {
    return __builtin_shuffle(a, b, vuint{(uint32_t)(I & D ? LANES + I - D : I)...});
}
template <int D, int... I> static inline vuint high_halves(vuint a, vuint b, std::integer_sequence<int, I...>) {
    return __builtin_shuffle(a, b, vuint{(uint32_t)(I & D ? LANES + I : I + D)...});
}
#endif

template <int D> static inline void transpose(vuint *rows) {
    constexpr auto all = std::make_integer_sequence<int, LANES>{};
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        if (!(i & D)) {
            vuint a = rows[i], b = rows[i + D];
            rows[i] = low_halves<D>(a, b, all);
            rows[i + D] = high_halves<D>(a, b, all);
        }
    if constexpr (D > 1) transpose<D / 2>(rows);
}

static inline float sum(vfloat v) {
    float lanes[LANES];
    store(lanes, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] += lanes[i + width];
    return lanes[0];
}

static inline float maximum(vfloat v) {
    float lanes[LANES];
    store(lanes, v);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) lanes[i] = lanes[i] > lanes[i + width] ? lanes[i] : lanes[i + width];
    return lanes[0];
}

// --- bfloat16 -----------------------------------------------------------------------------------------------
static inline float to_float(bf16 x) { return bits<float>((uint32_t)x << 16); }
static inline float to_float(float x) { return x; }

static inline bf16 to_bf16(float x) {  // to nearest, ties to even, as torch
    uint32_t u = bits<uint32_t>(x);
    if (x != x) return 0x7fc0;
    return (u + 0x7fff + ((u >> 16) & 1)) >> 16;
}

template <class T> static inline T from_float(float x);
template <> inline float from_float<float>(float x) { return x; }
template <> inline bf16 from_float<bf16>(float x) { return to_bf16(x); }

static inline vfloat load_floats(const float *from) { return load<vfloat>(from); }
static inline vfloat load_floats(const bf16 *from) {
    return bits<vfloat>(__builtin_convertvector(load<vhalf>(from), vuint) << 16);
}

static inline void store_floats(float *to, vfloat v) { store(to, v); }
static inline void store_floats(bf16 *to, vfloat v) {
#if defined(__AVX512BF16__)
    store(to, _mm512_cvtneps_pbh((__m512)v));
#else
    vuint u = bits<vuint>(v);
    u = (u + 0x7fff + ((u >> 16) & 1)) >> 16;
    vuint nan = bits<vuint>(v != v);
    u = (nan & 0x7fc0) | (~nan & u);
    store(to, __builtin_convertvector(u, vhalf));
#endif
}

// acc + the two products of each lane's pair of bfloat16; `pair` holds one pair for all lanes.
#if defined(__AVX512BF16__) && defined(__AVX512F__)
static inline vfloat dot_pairs(vfloat acc, vuint lanes, uint32_t pair) {
    return (vfloat)_mm512_dpbf16_ps((__m512)acc, (__m512bh)lanes, (__m512bh)_mm512_set1_epi32((int)pair));
}
#else
static inline vfloat dot_pairs(vfloat acc, vuint lanes, uint32_t pair) {
    acc += bits<vfloat>(lanes << 16) * bits<float>(pair << 16);
    return acc + bits<vfloat>(lanes & 0xffff0000u) * bits<float>(pair & 0xffff0000u);
}
#endif

// IEEE half to float, subnormals included: shift the bits into place, then scale by 2^112.
static inline vfloat from_half(vhalf h) {
    vuint u = __builtin_convertvector(h, vuint);
    vfloat size = bits<vfloat>((u & 0x7fff) << 13) * 0x1p112f;
    return bits<vfloat>(bits<vuint>(size) | ((u & 0x8000) << 16));
}

// --- exp: range reduction by ln 2 and a polynomial (Cephes expf, S. Moshier); 2 ulp; exactly 0 below -87 ------
static inline vfloat exponential(vfloat x) {
    const vfloat none = {};
    vint tiny = x < splat(-87.0f), huge = x > splat(88.0f);
    vfloat clamped = choose(huge, splat(88.0f), choose(tiny, splat(-87.0f), x));
    vfloat t = clamped * 1.44269504088896341f;
    vfloat magic = splat(12582912.0f);  // 1.5 * 2^23: adding it rounds to a whole number
    vfloat shifted = t + magic, n = shifted - magic;
    vfloat r = clamped - n * 0.693359375f + n * 2.12194440e-4f;
    vfloat p = splat(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    vuint power = (bits<vuint>(shifted) + (127u - 0x4b400000u)) << 23;
    return choose(tiny, none, p * bits<vfloat>(power));
}
