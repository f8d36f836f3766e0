// The layers of a decoder over a flat batch of tokens: norms, products, rotation, attention, gated products.
//
// Owns the order of a layer and its buffers' meaning; knows neither embedding nor sampling. Invariant: the residual
// stream is float32 whatever the weights are, and every result of a token depends on that token and its context.
#pragma once
#include <chrono>
#include <cmath>

#include "attention.hpp"
#include "linear.hpp"

struct Layer {
    const float *input_norm, *post_norm;               // before attention and the gated products; null: none
    const float *attention_out_norm, *mlp_out_norm;    // of what they add to the stream; null: none
    const float *qk_norm;                              // [query_heads + kv_heads, head_dim] or null
    const float *cos_sin;                              // [num_positions, 2, rotary_dim / 2]
    Weight qkv, out, gate_up, down;
    void *k_pool, *v_pool;
    int64_t window;  // tokens that a query sees; 0: all
};

struct Step {
    Attention attention;          // query, out and pools are filled in here
    const int64_t *positions;     // [tokens]
    const int32_t *slots;         // [tokens], -1: store nothing
    float *hidden;                // [tokens, hidden_size], the residual stream
    void *normed, *attended, *gated;  // [tokens, ld], activations padded with zeros to whole groups
    float *qkv;                   // [tokens, (query_heads + 2 kv_heads) * head_dim]
    float *product;               // [tokens, hidden_size], where a layer has norms of what it adds
    void *query;                  // [tokens, query_heads, head_dim], of the pool's dtype
    int64_t tokens, num_positions, normed_ld, attended_ld, gated_ld;
    int32_t hidden_size, pool_is_bf16, activations_are_bf16;
    int32_t rotary_dim, qk_norm_is_wide, gelu;  // wide: one norm over all heads; gelu: its tanh form, else SiLU
    float norm_eps;
    int64_t *spent;  // [PARTS], nanoseconds that the parts of all layers took are added; null: nobody asks
};

enum Part { NORMS, QKV, ROTATE, ATTEND, OUT, GATE_UP, DOWN, PARTS };

// Since when a part runs; `ends` books the time on it and begins the next.
class Watch {
  public:
    explicit Watch(int64_t *spent) : spent_(spent), since_(spent ? now() : 0) {}
    void ends(Part part) {
        if (!spent_) return;
        const int64_t at = now();
        spent_[part] += at - since_;
        since_ = at;
    }

  private:
    static int64_t now() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }
    int64_t *spent_, since_;
};

// RMSNorm (Zhang and Sennrich, arXiv 1910.07467).
template <class X> static inline void rms_norm(X *to, const float *from, const float *weight, int64_t n, float eps) {
    vfloat squares[4] = {};
    int64_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES)
        for (int v = 0; v < 4; v++) {
            vfloat x = load<vfloat>(from + i + v * LANES);
            squares[v] += x * x;
        }
    for (; i < n; i += LANES) {
        vfloat x = load_part(from + i, n - i < LANES ? n - i : LANES);
        squares[0] += x * x;
    }
    const float scale = 1 / std::sqrt(sum((squares[0] + squares[1]) + (squares[2] + squares[3])) / n + eps);
    for (i = 0; i < n; i += LANES) {
        const int64_t count = n - i < LANES ? n - i : LANES;
        store_part(to + i, load_part(from + i, count) * scale * load_part(weight + i, count), count);
    }
}

template <class X> static void norm_rows(X *to, int64_t ld, const float *from, const float *weight, int64_t rows, int64_t n, float eps) {
    if (!rows) return;
    const int64_t some = rows * n > 16384 ? 8 : rows;  // a small batch is not worth a hand-over
    pool().run((rows + some - 1) / some, [&](int64_t task) {
        for (int64_t r = task * some; r < rows && r < (task + 1) * some; r++) {
            if (weight)
                rms_norm(to + r * ld, from + r * n, weight, n, eps);
            else
                for (int64_t i = 0; i < n; i += LANES) {
                    const int64_t count = n - i < LANES ? n - i : LANES;
                    store_part(to + r * ld + i, load_part(from + r * n + i, count), count);
                }
        }
    });
}

// The stream gains the normed rows of `product`, which are overwritten.
static void add_normed(float *hidden, float *product, const float *weight, int64_t rows, int64_t n, float eps) {
    pool().run((rows + 7) / 8, [&](int64_t task) {
        for (int64_t r = task * 8; r < rows && r < (task + 1) * 8; r++) {
            float *from = product + r * n, *to = hidden + r * n;
            rms_norm(from, from, weight, n, eps);
            for (int64_t i = 0; i < n; i += LANES) {
                const int64_t count = n - i < LANES ? n - i : LANES;
                store_part(to + i, load_part(to + i, count) + load_part(from + i, count), count);
            }
        }
    });
}

// Rotary embedding of the first `turned` dims of one head, halves paired (i, i + turned / 2), after its optional norm.
template <class T> static inline void rotate(T *to, const float *from, const float *norm, float eps, const float *cos, int dim, int turned) {
    float head[512];
    if (norm) {
        rms_norm(head, from, norm, dim, eps);
        from = head;
    }
    const int half = turned / 2;
    const float *sin = cos + half;
    for (int i = 0; i < half; i += LANES) {
        const int64_t count = half - i < LANES ? half - i : LANES;
        vfloat a = load_part(from + i, count), b = load_part(from + half + i, count);
        vfloat c = load_part(cos + i, count), s = load_part(sin + i, count);
        store_part(to + i, a * c - b * s, count);
        store_part(to + half + i, b * c + a * s, count);
    }
    for (int i = turned; i < dim; i += LANES) {
        const int64_t count = dim - i < LANES ? dim - i : LANES;
        store_part(to + i, load_part(from + i, count), count);
    }
}

template <class T> static void rotate_and_store(const Step &step, const Layer &layer) {
    const Attention &a = step.attention;
    const int dim = a.head_dim, heads = a.query_heads + 2 * a.kv_heads, turned = step.rotary_dim;
    const float *norm = step.qk_norm_is_wide ? nullptr : layer.qk_norm;
    const int64_t some = step.tokens > 16 ? 8 : step.tokens;
    pool().run((step.tokens + some - 1) / some, [&](int64_t task) {
        for (int64_t t = task * some; t < step.tokens && t < (task + 1) * some; t++) {
            float *from = step.qkv + t * heads * dim;
            const float *cos = layer.cos_sin + step.positions[t] * turned;
            if (step.qk_norm_is_wide) {
                const int64_t queries = int64_t(a.query_heads) * dim;
                rms_norm(from, from, layer.qk_norm, queries, step.norm_eps);
                rms_norm(from + queries, from + queries, layer.qk_norm + queries, int64_t(a.kv_heads) * dim, step.norm_eps);
            }
            for (int h = 0; h < a.query_heads; h++)
                rotate((T *)step.query + (t * a.query_heads + h) * dim, from + h * dim,
                       norm ? norm + h * dim : nullptr, step.norm_eps, cos, dim, turned);
            const int64_t slot = step.slots[t];
            if (slot < 0) continue;
            const int64_t base = slot / a.block_size * a.pool_block + slot % a.block_size * a.pool_slot;
            for (int h = 0; h < a.kv_heads; h++) {
                const int q = a.query_heads + h;
                rotate((T *)layer.k_pool + base + h * a.pool_head, from + q * dim,
                       norm ? norm + q * dim : nullptr, step.norm_eps, cos, dim, turned);
                T *value = (T *)layer.v_pool + base + h * a.pool_head;
                for (int d = 0; d < dim; d += LANES) {
                    const int64_t count = dim - d < LANES ? dim - d : LANES;
                    store_part(value + d, load_part(from + (q + a.kv_heads) * dim + d, count), count);
                }
            }
        }
    });
}

template <class X> static void add_product(float *hidden, int64_t n, const Weight &w, const X *x, int64_t ld, int64_t rows) {
    multiply(w, x, ld, rows, [&](int64_t r, int64_t panel, const Tile &tile) {
        each_half(w, panel, tile, [&](int64_t column, int64_t count, vfloat value) {
            float *at = hidden + r * n + column;
            store_part(at, load_part(at, count) + value, count);
        });
    });
}

template <class X> static void put_product(float *to, int64_t ldt, const Weight &w, const X *x, int64_t ld, int64_t rows) {
    multiply(w, x, ld, rows, [&](int64_t r, int64_t panel, const Tile &tile) {
        each_half(w, panel, tile, [&](int64_t column, int64_t count, vfloat value) { store_part(to + r * ldt + column, value, count); });
    });
}

// silu(gate) * up of a gated weight's tiles, or the tanh form of gelu: x sigmoid(2 sqrt(2 / pi) (x + 0.044715 x^3)).
template <class X> static void gated_product(X *to, int64_t ldt, const Weight &w, const X *x, int64_t ld, int64_t rows, bool gelu) {
    const int64_t size = w.columns / 2;
    multiply(w, x, ld, rows, [&](int64_t r, int64_t panel, const Tile &tile) {
        const int64_t column = panel * LANES, count = size - column < LANES ? size - column : LANES;
        vfloat gate = tile.sum[0], up = tile.sum[1];
        if (w.bias) {
            gate += load_part(w.bias + column, count);
            up += load_part(w.bias + size + column, count);
        }
        const vfloat slope = gelu ? (gate * gate * 0.044715f + 1) * gate * 1.5957691216f : gate;
        store_part(to + r * ldt + column, gate / (exponential(-slope) + 1) * up, count);
    });
}

// The stream gains x times a weight, normed where the layer has a norm for it.
template <class X> static void add_to_stream(const Step &step, const float *norm, const Weight &w, const X *x, int64_t ld) {
    const int64_t rows = step.tokens, n = step.hidden_size;
    if (!norm) return add_product(step.hidden, n, w, x, ld, rows);
    put_product(step.product, n, w, x, ld, rows);
    add_normed(step.hidden, step.product, norm, rows, n, step.norm_eps);
}

template <class T, class X> static int run_layer(const Step &step, const Layer &layer) {
    const Attention &shape = step.attention;
    const int64_t rows = step.tokens, n = step.hidden_size;
    X *normed = (X *)step.normed, *attended = (X *)step.attended, *gated = (X *)step.gated;
    Watch watch(step.spent);
    norm_rows(normed, step.normed_ld, step.hidden, layer.input_norm, rows, n, step.norm_eps);
    watch.ends(NORMS);
    put_product(step.qkv, layer.qkv.columns, layer.qkv, normed, step.normed_ld, rows);
    watch.ends(QKV);
    rotate_and_store<T>(step, layer);
    watch.ends(ROTATE);
    Attention attention = shape;
    attention.query = step.query;
    attention.query_head = attention.out_head = shape.head_dim;
    attention.query_token = (int64_t)shape.query_heads * shape.head_dim;
    attention.out = attended;
    attention.out_token = step.attended_ld;
    attention.k_pool = layer.k_pool;
    attention.v_pool = layer.v_pool;
    attention.window = int32_t(layer.window);
    if (int wrong = paged_attention<T, X>(attention)) return wrong;
    watch.ends(ATTEND);
    add_to_stream(step, layer.attention_out_norm, layer.out, attended, step.attended_ld);
    watch.ends(OUT);
    norm_rows(normed, step.normed_ld, step.hidden, layer.post_norm, rows, n, step.norm_eps);
    watch.ends(NORMS);
    gated_product(gated, step.gated_ld, layer.gate_up, normed, step.normed_ld, rows, step.gelu);
    watch.ends(GATE_UP);
    add_to_stream(step, layer.mlp_out_norm, layer.down, gated, step.gated_ld);
    watch.ends(DOWN);
    return 0;
}

// 0; 1: a slot, 2: a block, 3: a position outside its range.
static int run_layers(const Step &step, const Layer *layers, int64_t count) {
    if (!step.tokens) return 0;
    for (int64_t t = 0; t < step.tokens; t++) {
        if (step.slots[t] >= step.attention.num_blocks * step.attention.block_size) return 1;
        if (step.positions[t] < 0 || step.positions[t] >= step.num_positions) return 3;
    }
    for (int64_t i = 0; i < count; i++) {
        int wrong;
        if (step.activations_are_bf16)
            wrong = step.pool_is_bf16 ? run_layer<bf16, bf16>(step, layers[i]) : run_layer<float, bf16>(step, layers[i]);
        else
            wrong = step.pool_is_bf16 ? run_layer<bf16, float>(step, layers[i]) : run_layer<float, float>(step, layers[i]);
        if (wrong) return wrong;
    }
    return 0;
}
