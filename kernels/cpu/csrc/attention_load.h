// Keys and values of a tile, out of the paged cache.
#ifndef OCTAVO_ATTENTION_LOAD_H
#define OCTAVO_ATTENTION_LOAD_H

#include "attention_group.h"
#include "transpose.h"

// Queries from which on it pays to convert a tile to float32 once, its keys transposed, rather than to convert rows at each load.
enum { BY_COLUMNS = 8 };

// A vector of elements of a row of the cache, from element i on.
INLINE vec load_elements(const int element, const void *row, int64_t i) {
    if (element == KV_F32) return x_load((const float *)row + i);
    if (element == KV_F16) return x_load_half((const uint16_t *)row + i);
    if (element == KV_BF16) return x_load_bfloat((const uint16_t *)row + i);
    return x_load_int8((const int8_t *)row + i);
}

INLINE v8f load_eight(const int element, const void *row, int64_t i) {
    if (element == KV_F32) return v_load((const float *)row + i);
    if (element == KV_F16) return v_load_half((const uint16_t *)row + i);
    if (element == KV_BF16) return v_load_bfloat((const uint16_t *)row + i);
    return v_load_int8((const int8_t *)row + i);
}

INLINE float element_of(const int element, const void *row, int64_t i) {
    if (element == KV_F32) return ((const float *)row)[i];
    if (element == KV_F16) return half_to_float(((const uint16_t *)row)[i]);
    if (element == KV_BF16) return bfloat_to_float(((const uint16_t *)row)[i]);
    return ((const int8_t *)row)[i];
}

// A row as float32, padded with zeros.
INLINE void convert_row(const int element, const void *row, float *out, int64_t n, int64_t padded) {
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) x_store(out + i, load_elements(element, row, i));
    for (; i < n; i++) out[i] = element_of(element, row, i);
    for (; i < padded; i++) out[i] = 0.0f;
}

// Rows transposed, into columns [padded, TILE_KEYS]. Eight keys at a time: those beyond [begin, end) must be readable.
INLINE void convert_columns(const int element, const uint8_t *const *rows, float *columns, int32_t begin, int32_t end, int64_t n,
                            int64_t padded) {
    for (int32_t key = begin / LANES * LANES; key < end; key += LANES) {
        const uint8_t *const *eight = rows + key;
        float *out = columns + key;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) {
            v8f x[LANES];
#pragma GCC unroll 8
            for (int k = 0; k < LANES; k++) x[k] = load_eight(element, eight[k], i);
            v_transpose(x);
#pragma GCC unroll 8
            for (int k = 0; k < LANES; k++) v_store(out + (i + k) * TILE_KEYS, x[k]);
        }
        for (; i < n; i++)
            for (int k = 0; k < LANES; k++) out[i * TILE_KEYS + k] = element_of(element, eight[k], i);
        for (; i < padded; i++) v_store(out + i * TILE_KEYS, v_set(0.0f));
    }
}

// Brings the tile's rows to float32 in the thread's own memory: keys transposed if many queries share them.
INLINE void convert_tile(const int element, group_t *group, int32_t begin, int32_t end, int64_t n) {
    const int64_t padded = group->padded;
    if (group->by_columns) convert_columns(element, group->keys, group->room, begin, end, n, padded);
    if (group->by_columns && element == KV_F32 && padded == n) return; // values are as they should be
    for (int32_t key = begin; key < end; key++) {
        const uint8_t *row = group->keys[key];
        float *out = group->room + key * padded;
        convert_row(element, row + group->values_at, out + TILE_KEYS * padded, n, padded);
        if (!group->by_columns) convert_row(element, row, out, n, padded);
        group->keys[key] = (const uint8_t *)out;
    }
    group->values_at = TILE_KEYS * padded * (int64_t)sizeof(float);
    group->element = KV_F32;
}

// Where the keys of positions [tile + begin, tile + end) of a sequence are in the cache.
static void find_keys(const kv_t *kv, const int32_t *block_table, int32_t kv_head, int32_t tile, int32_t begin, int32_t end,
                      const uint8_t **keys) {
    const int64_t row_bytes = kv_row_bytes(kv);
    for (int32_t key = begin; key < end;) {
        const int32_t offset = (tile + key) % kv->block_size;
        const uint8_t *base = kv->data + (int64_t)block_table[(tile + key) / kv->block_size] * kv->block_bytes;
        const uint8_t *row = base + ((int64_t)kv_head * kv->block_size + offset) * row_bytes;
        for (int32_t i = offset; i < kv->block_size && key < end; i++, row += row_bytes) keys[key++] = row;
    }
}

// Asks for a row that will be read one tile later. Two kilobytes here and two there are too little for the processor to notice a pattern in
// time; and asked for all at once, they would keep it waiting.
INLINE void prefetch_row(const uint8_t *row, int64_t row_bytes) {
    for (int64_t at = 0; at < row_bytes; at += 64) v_prefetch(row + at);
}

INLINE float row_scale(const void *row, int64_t head_size) {
    float scale;
    memcpy(&scale, (const int8_t *)row + head_size, sizeof scale);
    return scale;
}

// Keys are taken in eights: what is beyond [begin, end) must be readable, nothing more.
static void pad_keys(const uint8_t **keys, int32_t begin, int32_t end) {
    for (int32_t key = begin / LANES * LANES; key < begin; key++) keys[key] = keys[begin];
    for (int32_t key = end; key % LANES; key++) keys[key] = keys[begin];
}

// Takes over the keys that were found, of [begin, end) in the tile, with their values. Converts them to float32 where that pays or where a
// head is no whole number of vectors. Codes become floats as they are: to a bit it makes no difference whether they were converted.
static void load_tile(const kv_t *kv, int32_t begin, int32_t end, group_t *group) {
    const uint8_t **keys = group->next_keys;
    group->next_keys = group->keys;
    group->keys = keys;
    group->values_at = group->next_values_at;
    if (kv->element == KV_I8) {
        for (int32_t key = begin; key < end; key++) {
            group->key_scales[key] = row_scale(keys[key], kv->head_size);
            group->value_scales[key] = row_scale(keys[key] + group->values_at, kv->head_size);
        }
    }
    pad_keys(keys, begin, end);
    group->element = kv->element;
    group->by_columns = group->count >= BY_COLUMNS;
    if (!group->by_columns && group->padded == kv->head_size) return;
    if (kv->element == KV_F32) convert_tile(KV_F32, group, begin, end, kv->head_size);
    else if (kv->element == KV_F16) convert_tile(KV_F16, group, begin, end, kv->head_size);
    else if (kv->element == KV_BF16) convert_tile(KV_BF16, group, begin, end, kv->head_size);
    else convert_tile(KV_I8, group, begin, end, kv->head_size);
    pad_keys(keys, begin, end);
}

#endif
