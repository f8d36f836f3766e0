// The store of new keys and values into their slots.
//
// Owns the copies; knows no attention. Invariant: all slots are looked at first, so that nothing is written when one
// lies outside the pool.
#pragma once
#include <cstdint>
#include <cstring>

struct Store {  // strides in elements; slots int32 or int64 by slot_bytes
    const void *key, *value;
    void *k_pool, *v_pool;
    const void *slots;
    int64_t tokens, slot_bytes, key_token, key_head, value_token, value_head;
    int64_t pool_block, pool_slot, pool_head, num_blocks;
    int32_t block_size, kv_heads, head_dim, element_bytes;
};

// 0, or 1 when a slot lies outside the pool; nothing is written then.
static int store_kvcache(const Store &s) {
    auto slot = [&](int64_t t) { return s.slot_bytes == 8 ? ((const int64_t *)s.slots)[t] : ((const int32_t *)s.slots)[t]; };
    for (int64_t t = 0; t < s.tokens; t++)
        if (slot(t) >= s.num_blocks * s.block_size) return 1;
    const size_t size = (size_t)s.head_dim * s.element_bytes;
    for (int64_t t = 0; t < s.tokens; t++) {
        if (slot(t) < 0) continue;
        const int64_t base = slot(t) / s.block_size * s.pool_block + slot(t) % s.block_size * s.pool_slot;
        for (int h = 0; h < s.kv_heads; h++) {
            const int64_t to = (base + h * s.pool_head) * s.element_bytes;
            std::memcpy((char *)s.k_pool + to, (const char *)s.key + (t * s.key_token + h * s.key_head) * s.element_bytes, size);
            std::memcpy((char *)s.v_pool + to, (const char *)s.value + (t * s.value_token + h * s.value_head) * s.element_bytes, size);
        }
    }
    return 0;
}
