// Causal attention of rows of any length over their blocks.
//
// Owns the tiles of keys and the running softmax (Milakov and Gimelshein, arXiv 1805.02867; the tiling is that of
// FlashAttention, Dao et al., arXiv 2205.14135); knows no layer. Invariant: tiles of keys begin at fixed positions and
// are summed in order, so that a query's result is the same bits in a decode, a chunk or a whole prompt; a slot
// outside a row's context is never read.
#pragma once
#include <vector>

#include "pool.hpp"
#include "simd.hpp"

constexpr int KEYS = 4 * LANES;  // keys of a tile
constexpr int VECTORS = KEYS / LANES;
constexpr int SCORE_ROWS = LANES == 16 ? 6 : LANES == 8 ? 2 : 4;
constexpr int QUERY_ROWS = 48;  // queries times heads of a task, about

struct Attention {  // strides in elements; one head is contiguous
    const void *query;
    void *out;
    const void *k_pool, *v_pool;
    const int32_t *tables, *starts, *contexts;
    int64_t query_token, query_head, out_token, out_head;
    int64_t pool_block, pool_slot, pool_head, num_blocks, table_row;
    int32_t rows, block_size, kv_heads, query_heads, head_dim, window;
    float scale, softcap;
};

struct Work {
    int32_t row, first, count;  // queries [first, first + count) of the row
};

// The keys of a tile as `at`[pair of dims][key] words (bfloat16) or [dim][key] (float32): a dot product then runs
// down the columns, with no sum across lanes.
static inline void spread_key(uint32_t *at, const bf16 *key, int dim) {
    for (int p = 0; p < dim / 2; p++) {
        uint32_t pair;
        std::memcpy(&pair, key + 2 * p, 4);
        at[p * KEYS] = pair;
    }
    if (dim % 2) at[dim / 2 * KEYS] = key[dim - 1];
}
static inline void spread_key(float *at, const float *key, int dim) {
    for (int d = 0; d < dim; d++) at[d * KEYS] = key[d];
}

// The same for LANES keys, `apart` bytes between them, a whole number of squares of words, transposed in registers.
template <class W> static inline void spread_keys(W *at, const char *keys, int64_t apart, int words) {
    for (int w = 0; w < words; w += LANES) {
        vuint square[LANES];
        for (int i = 0; i < LANES; i++) square[i] = load<vuint>(keys + i * apart + 4 * w);
        transpose<LANES / 2>(square);
        for (int i = 0; i < LANES; i++) store(at + (w + i) * KEYS, square[i]);
    }
}

// The type of one step of a dot product: a pair of bfloat16, or one float32.
template <class T> struct Word;
template <> struct Word<bf16> {
    typedef uint32_t type;
    static int count(int dim) { return (dim + 1) / 2; }
    static vfloat add(vfloat acc, const uint32_t *keys, uint32_t query) { return dot_pairs(acc, load<vuint>(keys), query); }
};
template <> struct Word<float> {
    typedef float type;
    static int count(int dim) { return dim; }
    static vfloat add(vfloat acc, const float *keys, float query) { return acc + load<vfloat>(keys) * query; }
};


template <class T, int ROWS>
static inline void score_rows(float *scores, const typename Word<T>::type *query, const typename Word<T>::type *keys, int count, int ldq) {
    vfloat acc[ROWS][VECTORS] = {};
    for (int d = 0; d < count; d++) {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
            for (int v = 0; v < VECTORS; v++) acc[r][v] = Word<T>::add(acc[r][v], keys + d * KEYS + v * LANES, query[r * ldq + d]);
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < VECTORS; v++) store(scores + r * KEYS + v * LANES, acc[r][v]);
}

// out[r] += weights[r] times values, for WIDE vectors of each head. A word is a key's value, or those of two keys.
template <class T, int ROWS, int WIDE>
static inline void weigh_rows(float *out, const float *weights, const typename Word<T>::type *values, int ld) {
    vfloat acc[ROWS][WIDE];
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < WIDE; v++) acc[r][v] = load<vfloat>(out + r * ld + v * LANES);
    for (int word = 0; word < Word<T>::count(KEYS); word++) {
#pragma GCC unroll 8
        for (int r = 0; r < ROWS; r++) {
            typename Word<T>::type weight;
            std::memcpy(&weight, (const char *)(weights + r * KEYS) + word * sizeof(weight), sizeof(weight));
#pragma GCC unroll 4
            for (int v = 0; v < WIDE; v++) acc[r][v] = Word<T>::add(acc[r][v], values + word * ld + v * LANES, weight);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int v = 0; v < WIDE; v++) store(out + r * ld + v * LANES, acc[r][v]);
}

template <class T, int ROWS> static inline void weigh_all(float *out, const float *weights, const typename Word<T>::type *values, int ld) {
    int at = 0;
    for (; at + 4 * LANES <= ld; at += 4 * LANES) weigh_rows<T, ROWS, 4>(out + at, weights, values + at, ld);
    for (; at < ld; at += LANES) weigh_rows<T, ROWS, 1>(out + at, weights, values + at, ld);
}

template <class T, int ROWS>
static void any_scores(int rows, float *scores, const typename Word<T>::type *query, const typename Word<T>::type *keys, int count, int ldq) {
    if (rows == ROWS)
        score_rows<T, ROWS>(scores, query, keys, count, ldq);
    else if constexpr (ROWS > 1)
        any_scores<T, ROWS - 1>(rows, scores, query, keys, count, ldq);
}

template <class T, int ROWS> static void any_weigh(int rows, float *out, const float *weights, const typename Word<T>::type *values, int ld) {
    if (rows == ROWS)
        weigh_all<T, ROWS>(out, weights, values, ld);
    else if constexpr (ROWS > 1)
        any_weigh<T, ROWS - 1>(rows, out, weights, values, ld);
}

template <int... I> static inline vint ascending(std::integer_sequence<int, I...>) { return vint{I...}; }

static inline vfloat soft_cap(vfloat x, float cap) {  // cap * tanh(x / cap)
    return cap - 2 * cap / (exponential(x * (2 / cap)) + 1);
}

// One row of scores against keys [begin, begin + KEYS) becomes weights of type T, in place; `from` and `to` bound the
// visible keys.
template <class T>
static inline void soften(float *scores, float *peak, float *mass, float *out, int ld, const Attention &a, int64_t begin, int64_t from, int64_t to) {
    const vfloat hidden = splat(-__builtin_inff());
    vfloat score[VECTORS], best = hidden;
    for (int v = 0; v < VECTORS; v++) {
        score[v] = load<vfloat>(scores + v * LANES) * a.scale;
        if (a.softcap > 0) score[v] = soft_cap(score[v], a.softcap);
    }
    if (from > begin || to < begin + KEYS) {
        const vint lane = ascending(std::make_integer_sequence<int, LANES>{});
        for (int v = 0; v < VECTORS; v++) {
            vint at = lane + int(v * LANES), visible = at < int(to - begin < KEYS ? to - begin : KEYS);
            score[v] = choose(visible & (at >= int(from - begin)), score[v], hidden);
        }
    }
    for (int v = 0; v < VECTORS; v++) best = greater(score[v], best);
    float top = maximum(best);
    top = top > *peak ? top : *peak;
    const float base = top == -__builtin_inff() ? 0 : top;
    const vfloat factor = exponential(splat(*peak - base));
    vfloat total = load<vfloat>(mass) * factor;
    for (int v = 0; v < VECTORS; v++) {
        vfloat weight = exponential(score[v] - base);
        store_floats((T *)scores + v * LANES, weight);
        total += weight;
    }
    store(mass, total);
    if (top != *peak)
        for (int at = 0; at < ld; at += LANES) store(out + at, load<vfloat>(out + at) * factor);
    *peak = top;
}

// The values of `count` keys, `apart` elements between them, from key `at` of the tile on, as words [key][ld].
static inline void take_values(float *values, int64_t at, const float *from, int64_t apart, int64_t count, int dim, int ld) {
    for (int64_t i = 0; i < count; i++) std::memcpy(values + (at + i) * ld, from + i * apart, sizeof(float) * dim);
}
// As [pair of keys][ld].
static inline void take_values(uint32_t *values, int64_t at, const bf16 *from, int64_t apart, int64_t count, int dim, int ld) {
    for (int64_t i = 0; i < count;) {
        uint32_t *to = values + (at + i) / 2 * ld;
        const bf16 *low = from + i * apart, *high = low + apart;
        const bool odd = (at + i) % 2, both = !odd && i + 1 < count;
        int d = 0;
        if (both)
            for (; d + LANES <= dim; d += LANES)
                store(to + d, __builtin_convertvector(load<vhalf>(low + d), vuint) | __builtin_convertvector(load<vhalf>(high + d), vuint) << 16);
        for (; d < dim; d++) {
            bf16 pair[2];
            std::memcpy(pair, to + d, 4);
            pair[odd] = low[d];
            if (both) pair[1] = high[d];
            std::memcpy(to + d, pair, 4);
        }
        i += both ? 2 : 1;
    }
}

// Copies the keys and values of positions [begin, end) of a row into the tile; what is left of the tile is zero.
template <class T>
static inline void gather(const Attention &a, int row, int head, int64_t begin, int64_t end, typename Word<T>::type *keys, typename Word<T>::type *values, int ld) {
    const int dim = a.head_dim;
    if (end - begin < KEYS) {
        std::memset(keys, 0, sizeof(*keys) * KEYS * Word<T>::count(dim));
        std::memset(values, 0, sizeof(*values) * Word<T>::count(KEYS) * ld);
    }
    const int32_t *table = a.tables + row * a.table_row;
    for (int64_t at = begin; at < end;) {
        const int64_t block = table[at / a.block_size], offset = at % a.block_size;
        const int64_t count = a.block_size - offset < end - at ? a.block_size - offset : end - at;
        const int64_t start = block * a.pool_block + offset * a.pool_slot + head * a.pool_head;
        const T *from = (const T *)a.k_pool + start;
        int64_t spread = 0;
        if (dim * sizeof(T) % (4 * LANES) == 0)
            for (; spread + LANES <= count; spread += LANES)
                spread_keys(keys + (at - begin + spread), (const char *)(from + spread * a.pool_slot), a.pool_slot * sizeof(T), dim * sizeof(T) / 4);
        for (; spread < count; spread++) spread_key(keys + (at - begin + spread), from + spread * a.pool_slot, dim);
        take_values(values, at - begin, (const T *)a.v_pool + start, a.pool_slot, count, dim, ld);
        at += count;
    }
}

template <class T, class Out> static void attend(const Attention &a, const Work &work, int head) {
    typedef typename Word<T>::type W;
    const int group = a.query_heads / a.kv_heads, dim = a.head_dim, count = Word<T>::count(dim);
    const int ld = (dim + LANES - 1) / LANES * LANES, rows = work.count * group;
    const int first_token = a.starts[work.row], context = a.contexts[work.row];
    const int64_t behind = context - (a.starts[work.row + 1] - first_token);  // context before the row's first query
    float *space = scratch((size_t)2 * KEYS * ld + (size_t)rows * (2 * ld + KEYS + LANES + 16) + 16 * 6);
    W *values = (W *)space;
    float *scores = space + KEYS * ld, *out = scores + rows * KEYS, *mass = out + rows * ld;
    W *query = (W *)(mass + rows * LANES), *keys = (W *)((float *)query + (rows * ld + 15) / 16 * 16);
    float *peak = (float *)keys + KEYS * ld;
    std::memset(out, 0, sizeof(float) * rows * ld);
    std::memset(values, 0, sizeof(W) * Word<T>::count(KEYS) * ld);
    std::memset(mass, 0, sizeof(float) * rows * LANES);
    std::memset(query, 0, sizeof(W) * rows * count);
    for (int r = 0; r < rows; r++) {
        const int64_t token = first_token + work.first + r / group, q = head * group + r % group;
        std::memcpy(query + r * count, (const T *)a.query + token * a.query_token + q * a.query_head, sizeof(T) * dim);
        peak[r] = -__builtin_inff();
    }
    const int64_t last = behind + work.first + work.count;
    int64_t begin = 0;
    if (a.window > 0 && behind + work.first + 1 > a.window) begin = (behind + work.first + 1 - a.window) / KEYS * KEYS;
    for (; begin < last; begin += KEYS) {
        gather<T>(a, work.row, head, begin, begin + KEYS < context ? begin + KEYS : context, keys, values, ld);
        for (int r = 0; r < rows; r += SCORE_ROWS) {
            const int some = rows - r < SCORE_ROWS ? rows - r : SCORE_ROWS;
            any_scores<T, SCORE_ROWS>(some, scores + r * KEYS, query + r * count, keys, count, count);
        }
        for (int r = 0; r < rows; r++) {
            const int64_t to = behind + work.first + r / group + 1;
            const int64_t from = a.window > 0 && to > a.window ? to - a.window : 0;
            soften<T>(scores + r * KEYS, peak + r, mass + r * LANES, out + r * ld, ld, a, begin, from, to);
        }
        for (int r = 0; r < rows; r += SCORE_ROWS) {
            const int some = rows - r < SCORE_ROWS ? rows - r : SCORE_ROWS;
            any_weigh<T, SCORE_ROWS>(some, out + r * ld, scores + r * KEYS, values, ld);
        }
    }
    for (int r = 0; r < rows; r++) {
        const int64_t token = first_token + work.first + r / group, q = head * group + r % group;
        const float share = 1 / sum(load<vfloat>(mass + r * LANES));
        Out *to = (Out *)a.out + token * a.out_token + q * a.out_head;
        for (int d = 0; d < dim; d++) to[d] = from_float<Out>(out[r * ld + d] * share);
    }
}

// 0, or 2 when a row names a block that is not there. Rows without context give zeros.
template <class T, class Out> static int paged_attention(const Attention &a) {
    const int group = a.query_heads / a.kv_heads, most = QUERY_ROWS / group > 0 ? QUERY_ROWS / group : 1;
    std::vector<Work> list;
    for (int32_t row = 0; row < a.rows; row++) {
        const int32_t queries = a.starts[row + 1] - a.starts[row], context = a.contexts[row];
        for (int64_t i = 0; queries > 0 && i * a.block_size < context; i++) {
            const int32_t block = a.tables[row * a.table_row + i];
            if (block < 0 || block >= a.num_blocks) return 2;
        }
        if (context == 0)
            for (int32_t q = 0; q < queries; q++)
                for (int32_t h = 0; h < a.query_heads; h++)
                    std::memset((Out *)a.out + (a.starts[row] + q) * a.out_token + h * a.out_head, 0, sizeof(Out) * a.head_dim);
        else
            for (int32_t first = (queries - 1) / most * most; first >= 0 && queries > 0; first -= most)
                list.push_back({row, first, queries - first < most ? queries - first : most});
    }
    pool().run(int64_t(list.size()) * a.kv_heads, [&](int64_t task) {
        attend<T, Out>(a, list[task / a.kv_heads], int(task % a.kv_heads));
    });
    return 0;
}
