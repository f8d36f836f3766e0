// Drawn shapes through every CPU kernel under AddressSanitizer and UndefinedBehaviorSanitizer (or ThreadSanitizer).
//
// Owns the drawing and naive answers; knows no Python. Invariant: every buffer has exactly the size the kernels may
// touch, on the heap, and every slot outside a row's context holds NaN.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <random>

#include "kernels.cpp"

static std::mt19937_64 rng(1);
static int between(int low, int high) { return low + int(rng() % uint64_t(high - low + 1)); }
static float normal() { return std::normal_distribution<float>()(rng); }
template <class T> static std::vector<T> drawn(size_t count) {
    std::vector<T> values(count);
    for (auto &value : values) value = from_float<T>(normal());
    return values;
}
static int failures = 0;
static void expect(bool holds, const char *what, double value) {
    if (!holds && ++failures < 20) std::printf("WRONG %s: %g\n", what, value);
}

struct Rows {
    std::vector<int32_t> tables, starts{0}, contexts, slots;
    int width = 0, blocks = 0, block_size = 0, longest = 0;
};

static Rows draw_rows(int most, int longest) {
    Rows rows;
    rows.block_size = between(0, 3) ? between(1, 40) : between(41, 300);
    const int count = between(1, most);
    std::vector<int> held;
    for (int r = 0; r < count; r++) {
        const int context = between(1, longest), queries = between(0, 1) ? 1 : between(0, context);
        rows.contexts.push_back(context);
        rows.starts.push_back(rows.starts.back() + queries);
        held.push_back((context + rows.block_size - 1) / rows.block_size);
        rows.width = std::max(rows.width, held.back());
        rows.longest = std::max(rows.longest, context);
        rows.blocks += held.back();
    }
    std::vector<int32_t> ids(rows.blocks);
    for (int i = 0; i < rows.blocks; i++) ids[i] = i;
    std::shuffle(ids.begin(), ids.end(), rng);
    rows.tables.assign(size_t(count) * rows.width, 1 << 30);
    int next = 0;
    for (int r = 0; r < count; r++)
        for (int b = 0; b < held[r]; b++) rows.tables[r * rows.width + b] = ids[next++];
    for (int r = 0; r < count; r++) {
        const int queries = rows.starts[r + 1] - rows.starts[r];
        for (int p = rows.contexts[r] - queries; p < rows.contexts[r]; p++)
            rows.slots.push_back(rows.tables[r * rows.width + p / rows.block_size] * rows.block_size + p % rows.block_size);
    }
    return rows;
}

static Attention describe(const Rows &rows, int kv_heads, int group, int dim) {
    Attention a = {};
    a.tables = rows.tables.data(), a.starts = rows.starts.data(), a.contexts = rows.contexts.data();
    a.query_token = a.out_token = int64_t(kv_heads) * group * dim, a.query_head = a.out_head = dim;
    a.pool_head = dim, a.pool_slot = int64_t(kv_heads) * dim, a.pool_block = a.pool_slot * rows.block_size;
    a.num_blocks = rows.blocks, a.table_row = rows.width, a.rows = int(rows.contexts.size());
    a.block_size = rows.block_size, a.kv_heads = kv_heads, a.query_heads = kv_heads * group, a.head_dim = dim;
    a.scale = 1 / std::sqrt(float(dim)), a.window = between(0, 3) ? 0 : between(1, 50), a.softcap = between(0, 3) ? 0 : 20;
    return a;
}

// One drawn query and head, in double.
template <class T> static void compare_one(const Attention &a, const std::vector<T> &out) {
    const int row = between(0, a.rows - 1), queries = a.starts[row + 1] - a.starts[row];
    if (!queries) return;
    const int q = between(0, queries - 1), head = between(0, a.query_heads - 1), kv = head / (a.query_heads / a.kv_heads);
    const int to = a.contexts[row] - queries + q + 1, from = a.window && to > a.window ? to - a.window : 0;
    auto at = [&](const void *pool, int p, int d) {
        const int64_t block = a.tables[row * a.table_row + p / a.block_size];
        return double(to_float(((const T *)pool)[block * a.pool_block + p % a.block_size * a.pool_slot + kv * a.pool_head + d]));
    };
    const T *query = (const T *)a.query + (a.starts[row] + q) * a.query_token + head * a.query_head;
    std::vector<double> scores, wanted(a.head_dim);
    double top = -1e300, total = 0, error = 0, size = 0;
    for (int p = from; p < to; p++) {
        double dot = 0;
        for (int d = 0; d < a.head_dim; d++) dot += double(to_float(query[d])) * at(a.k_pool, p, d);
        dot *= a.scale;
        scores.push_back(a.softcap ? a.softcap * std::tanh(dot / a.softcap) : dot);
        top = std::max(top, scores.back());
    }
    for (int p = from; p < to; p++) {
        const double weight = std::exp(scores[p - from] - top);
        total += weight;
        for (int d = 0; d < a.head_dim; d++) wanted[d] += weight * at(a.v_pool, p, d);
    }
    for (int d = 0; d < a.head_dim; d++) {
        const double got = to_float(out[(a.starts[row] + q) * a.out_token + head * a.out_head + d]), want = wanted[d] / total;
        error += (got - want) * (got - want), size += want * want;
    }
    expect(error <= (sizeof(T) == 2 ? 1e-4 : 1e-9) * size + 1e-12, "attention", std::sqrt(error / size));
}

template <class T> static void try_attention() {
    const int dims[] = {1, 2, 7, 16, 33, 64, 80, 96, 128, 256};
    const int dim = dims[between(0, 9)], kv_heads = between(1, 3), group = between(1, 9);
    Rows rows = draw_rows(5, between(0, 4) ? 70 : 400);
    Attention a = describe(rows, kv_heads, group, dim);
    const size_t slots = size_t(rows.blocks) * rows.block_size * kv_heads * dim, tokens = rows.starts.back();
    std::vector<T> keys(slots, from_float<T>(std::numeric_limits<float>::quiet_NaN())), values = keys;
    for (int r = 0; r < a.rows; r++)
        for (int p = 0; p < a.contexts[r]; p++) {
            const int64_t base = rows.tables[r * rows.width + p / rows.block_size] * a.pool_block + p % rows.block_size * a.pool_slot;
            for (int i = 0; i < kv_heads * dim; i++) keys[base + i] = from_float<T>(normal()), values[base + i] = from_float<T>(normal());
        }
    auto fresh_keys = drawn<T>(tokens * kv_heads * dim), fresh_values = drawn<T>(tokens * kv_heads * dim);
    Store store = {fresh_keys.data(), fresh_values.data(), keys.data(), values.data(), rows.slots.data(), int64_t(tokens), 4,
                   int64_t(kv_heads) * dim, dim, int64_t(kv_heads) * dim, dim, a.pool_block, a.pool_slot, a.pool_head, a.num_blocks,
                   a.block_size, kv_heads, dim, sizeof(T)};
    expect(octavo_store_kvcache(&store) == 0, "store", 0);
    auto query = drawn<T>(tokens * a.query_heads * dim);
    std::vector<T> out(query.size());
    a.query = query.data(), a.out = out.data(), a.k_pool = keys.data(), a.v_pool = values.data();
    expect(octavo_paged_attention(&a, sizeof(T) == 2) == 0, "attention's result", 0);
    for (T value : out) expect(to_float(value) == to_float(value), "NaN in attention", 0);
    for (int i = 0; i < 3; i++) compare_one<T>(a, out);
}

struct Packed {
    std::vector<uint32_t> data, wide;
    std::vector<uint16_t> scales, least;
    std::vector<float> bias, plain;
    Weight w = {};
    Packed(int format, int columns, int k, bool gated, bool with_bias) : plain(drawn<float>(size_t(columns) * k)) {
        w.format = format, w.columns = columns, w.k = k, w.gated = gated;
        if (format >= GRID8) lay_on_grid();
        data.resize(octavo_packed_words(&w)), scales.resize(octavo_packed_scales(&w)), least.resize(has_least(w) ? scales.size() : 0);
        wide.resize(octavo_wide_words(&w)), w.wide = wide.empty() ? nullptr : wide.data();
        if (with_bias) bias = drawn<float>(columns);
        w.data = data.data(), w.scales = scales.data(), w.least = least.data(), w.bias = with_bias ? bias.data() : nullptr;
        expect(octavo_pack(&w, plain.data()), "a weight fits its format", format);
    }
    void lay_on_grid() {  // whole numbers times a half, plus a half; the outermost occur in every group
        const int levels = has_least(w) ? 15 : 127;
        for (size_t row = 0; row < plain.size(); row += w.k)
            for (int first = 0; first < w.k; first += GROUP) {
                const float scale = half_value(to_half(between(1, 900) / 16384.0f)), least = has_least(w) ? half_value(to_half(-between(1, 15) * scale)) : 0;
                for (int i = first; i < w.k && i < first + GROUP; i++) {
                    const int number = i == first ? 0 : i == first + 1 ? levels : between(has_least(w) ? 0 : -levels, levels);
                    plain[row + i] = number * scale + least;
                }
            }
    }
};

static void try_linear() {
    const int format = between(0, 5), columns = between(1, 150), k = between(1, 200), rows = between(1, 40);
    Packed packed(format, columns, k, false, between(0, 1));
    const int64_t ld = up(k, GROUP);
    std::vector<float> x(rows * ld), out(size_t(rows) * columns);
    std::vector<bf16> narrow(rows * ld);
    for (int r = 0; r < rows; r++)
        for (int i = 0; i < k; i++) narrow[r * ld + i] = to_bf16(normal()), x[r * ld + i] = to_float(narrow[r * ld + i]);
    octavo_linear(&packed.w, has_bf16_inputs(packed.w) ? (const void *)narrow.data() : x.data(), ld, rows, out.data());
    const int r = between(0, rows - 1), c = between(0, columns - 1);
    double want = packed.w.bias ? packed.bias[c] : 0, size = 1;
    for (int i = 0; i < k; i++) want += double(x[r * ld + i]) * packed.plain[c * k + i], size += std::fabs(x[r * ld + i] * packed.plain[c * k + i]);
    const double allowed[] = {1e-6, 6e-3, 2e-2, 2e-1, 6e-3, 6e-3};
    expect(std::fabs(out[r * columns + c] - want) <= allowed[format] * size, "linear", out[r * columns + c] - want);
}

template <class T, class X> static void try_layers() {
    const int narrow[] = {BFLOAT16, GRID8, GRID4}, plain[] = {FLOAT32, INT8, INT4}, format = (sizeof(X) == 2 ? narrow : plain)[between(0, 2)];
    const int dim = 2 * between(1, 40), kv_heads = between(1, 2), group = between(1, 3), hidden = between(1, 90), inner = between(1, 90);
    Rows rows = draw_rows(4, 80);
    Step step = {};
    step.attention = describe(rows, kv_heads, group, dim);
    const int heads = kv_heads * group, qkv = (heads + 2 * kv_heads) * dim;
    const size_t tokens = rows.starts.back(), slots = size_t(rows.blocks) * rows.block_size * kv_heads * dim;
    Packed a(format, qkv, hidden, false, between(0, 1)), b(format, hidden, heads * dim, false, between(0, 1));
    Packed c(format, 2 * inner, hidden, true, between(0, 1)), d(format, hidden, inner, false, between(0, 1));
    auto norm = drawn<float>(hidden), other = drawn<float>(hidden), head_norm = drawn<float>(size_t(heads + kv_heads) * dim);
    auto keys = drawn<T>(slots), values = drawn<T>(slots), query = drawn<T>(tokens * heads * dim);
    auto any = [&](std::vector<float> &weight) { return between(0, 1) ? weight.data() : nullptr; };
    const int turned = between(1, dim / 2) * 2;
    std::vector<int64_t> positions;
    for (int r = 0; r < step.attention.rows; r++)
        for (int p = rows.contexts[r] - (rows.starts[r + 1] - rows.starts[r]); p < rows.contexts[r]; p++) positions.push_back(p);
    auto table = drawn<float>(size_t(rows.longest) * turned), added = drawn<float>(tokens * hidden), stream = drawn<float>(tokens * hidden);
    step.normed_ld = up(hidden, GROUP), step.attended_ld = up(heads * dim, GROUP), step.gated_ld = up(inner, GROUP);
    std::vector<X> normed(tokens * step.normed_ld), attended(tokens * step.attended_ld), gated(tokens * step.gated_ld);
    std::vector<float> projected(tokens * qkv);
    Layer layer = {any(norm), any(other), any(other), any(norm), any(head_norm), table.data(), a.w, b.w, c.w, d.w, keys.data(), values.data(), between(0, 1) * 9};
    step.rotary_dim = turned, step.gelu = between(0, 1), step.qk_norm_is_wide = layer.qk_norm && between(0, 1);
    step.positions = positions.data(), step.slots = rows.slots.data(), step.product = added.data(), step.hidden = stream.data();
    step.normed = normed.data(), step.attended = attended.data(), step.gated = gated.data();
    step.qkv = projected.data(), step.query = query.data(), step.tokens = int64_t(tokens), step.num_positions = rows.longest;
    step.hidden_size = hidden, step.pool_is_bf16 = sizeof(T) == 2, step.activations_are_bf16 = sizeof(X) == 2, step.norm_eps = 1e-5f;
    int64_t spent[PARTS] = {};
    step.spent = between(0, 1) ? spent : nullptr;
    expect(octavo_run_layers(&step, &layer, 1) == 0, "layers' result", 0);
    for (float value : stream) expect(value == value, "NaN in layers", 0);
}

int main(int count, char **arguments) {
    const int rounds = count > 1 ? std::atoi(arguments[1]) : 300;
    octavo_set_threads(3);
    for (int i = 0; i < rounds; i++) {
        try_attention<float>();
        try_attention<bf16>();
        try_linear();
        try_layers<bf16, bf16>();
        try_layers<float, float>();
        try_layers<bf16, float>();
        try_layers<float, bf16>();
    }
    std::printf("%d rounds of drawn shapes, %d lanes, bfloat16 dot %d: %d wrong\n", rounds, LANES, octavo_has_bf16_dot(), failures);
    return failures != 0;
}
