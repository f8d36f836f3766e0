// The C interface of the CPU kernels, called from Python through ctypes.
//
// Owns the exported names; knows no Python. Invariant: no exception leaves here, and a non-zero result says which
// argument was out of range: 1 a slot, 2 a block, 3 a position.
#include "layers.hpp"
#include "pack.hpp"
#include "store.hpp"

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT int32_t octavo_set_threads(int32_t count) { return pool().resize(count); }
EXPORT int32_t octavo_lanes() { return LANES; }
EXPORT int32_t octavo_has_bf16_dot() {
#if defined(__AVX512BF16__)
    return 1;
#else
    return 0;
#endif
}

EXPORT int32_t octavo_store_kvcache(const Store *store) { return store_kvcache(*store); }

EXPORT int32_t octavo_paged_attention(const Attention *attention, int32_t is_bf16) {
    return is_bf16 ? paged_attention<bf16, bf16>(*attention) : paged_attention<float, float>(*attention);
}

EXPORT int64_t octavo_packed_words(const Weight *w) { return panels(*w) * words(*w) * PANEL; }
EXPORT int64_t octavo_wide_words(const Weight *w) { return w->format >= GRID8 ? panels(*w) * words(widened(*w)) * PANEL : 0; }
EXPORT int64_t octavo_packed_scales(const Weight *w) { return has_groups(*w) ? panels(*w) * groups(*w) * PANEL : 0; }
EXPORT int32_t octavo_pack(const Weight *w, const float *from) { return pack(*w, from); }

// to [rows, columns] float32 = x [rows, k] (padded with zeros to whole words and groups) times the weight, plus bias.
EXPORT void octavo_linear(const Weight *w, const void *x, int64_t ld, int64_t rows, float *to) {
    if (has_bf16_inputs(*w))
        put_product(to, w->columns, *w, (const bf16 *)x, ld, rows);
    else
        put_product(to, w->columns, *w, (const float *)x, ld, rows);
}

EXPORT int32_t octavo_run_layers(const Step *step, const Layer *layers, int64_t count) { return run_layers(*step, layers, count); }

// logits [rows, columns] float32 of hidden rows [rows, n]: final norm, then the head; normed is scratch [rows, ld].
EXPORT void octavo_logits(const Weight *head, const float *norm, float eps, const float *hidden, int64_t rows, void *normed, int64_t ld, float *logits) {
    if (has_bf16_inputs(*head))
        norm_rows((bf16 *)normed, ld, hidden, norm, rows, head->k, eps);
    else
        norm_rows((float *)normed, ld, hidden, norm, rows, head->k, eps);
    octavo_linear(head, normed, ld, rows, logits);
}

EXPORT int64_t octavo_size_of(int32_t structure) {
    const int64_t sizes[] = {sizeof(Weight), sizeof(Attention), sizeof(Store), sizeof(Layer), sizeof(Step)};
    return structure >= 0 && structure < 5 ? sizes[structure] : -1;
}
