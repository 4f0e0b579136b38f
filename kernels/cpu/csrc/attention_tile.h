// A group of queries meets one tile of keys and values of the paged cache (attention.c says in which order).
#ifndef OCTAVO_ATTENTION_TILE_H
#define OCTAVO_ATTENTION_TILE_H

#include "octavo.h"
#include "hadamard.h"
#include "widest.h"

enum {
    TILE_KEYS = 32,
    QUERIES = 48, // about this many queries (rows times heads of one kv head) per item
    CONVERT = 8, // queries from which on it pays to convert a tile to float32 once, rather than at each load
};

#ifdef WIDE_REGISTERS
enum { SHARED = 4 }; // queries in registers at once: 16 sums of 32 registers
#else
enum { SHARED = 3 }; // 12 sums of 16 registers
#endif

// A group of queries that walk over the same keys, and what they have gathered so far. All in the thread's scratch memory.
typedef struct {
    int32_t count; // rows * heads per kv head, row by row
    int32_t heads; // per kv head
    int64_t padded; // head size rounded up to whole vectors
    int32_t element; // KV_*, of the rows below
    const void *keys[TILE_KEYS], *values[TILE_KEYS]; // rows of the tile: in the cache, or converted in the room below
    float key_scales[TILE_KEYS], value_scales[TILE_KEYS]; // what they must be multiplied by: 1 but for int8, whose rows are codes
    float *room; // [2 * TILE_KEYS, padded]
    float *queries; // [count, padded], scaled
    float *scores; // [count, TILE_KEYS]
    float *sums; // [count, padded], of the segment: values weighted by exp(score - top)
    float *top, *weight; // [count], of the segment: largest score, and sum of exp(score - top)
    float *total_sums, *total_top, *total_weight; // the same over all segments merged so far
    int32_t *first, *last; // [count]: the query sees keys at positions [first, last)
} group_t;

static int64_t padded_size(const kv_t *kv) { return (kv->head_size + WIDTH - 1) / WIDTH * WIDTH; }

static int32_t heads_per_kv_head(const kv_t *kv) { return kv->num_heads / kv->num_kv_heads; }

static int32_t rows_per_item(const kv_t *kv) {
    const int32_t rows = QUERIES / heads_per_kv_head(kv);
    return rows < 1 ? 1 : rows;
}

static void make_group(worker_t *worker, const kv_t *kv, group_t *group) {
    const int64_t padded = padded_size(kv), most = (int64_t)rows_per_item(kv) * heads_per_kv_head(kv);
    const int64_t floats = 2 * TILE_KEYS * padded + most * (3 * padded + TILE_KEYS + 6);
    float *memory = scratch(worker, (size_t)floats * sizeof(float));
    group->heads = heads_per_kv_head(kv);
    group->padded = padded;
    group->room = memory;
    group->queries = group->room + 2 * TILE_KEYS * padded;
    group->sums = group->queries + most * padded;
    group->total_sums = group->sums + most * padded;
    group->scores = group->total_sums + most * padded;
    group->top = group->scores + most * TILE_KEYS;
    group->weight = group->top + most;
    group->total_top = group->weight + most;
    group->total_weight = group->total_top + most;
    group->first = (int32_t *)(group->total_weight + most);
    group->last = group->first + most;
}

// ---- Loading -----------------------------------------------------------------------------------------------------------------------

// A vector of elements of a row of the cache, from element i on.
INLINE vec load_elements(const int element, const void *row, int64_t i) {
    if (element == KV_F32) return x_load((const float *)row + i);
    if (element == KV_F16) return x_load_half((const uint16_t *)row + i);
    if (element == KV_BF16) return x_load_bfloat((const uint16_t *)row + i);
    return x_load_int8((const int8_t *)row + i);
}

INLINE float element_of(const int element, const void *row, int64_t i) {
    if (element == KV_F32) return ((const float *)row)[i];
    if (element == KV_F16) return half_to_float(((const uint16_t *)row)[i]);
    if (element == KV_BF16) return bfloat_to_float(((const uint16_t *)row)[i]);
    return ((const int8_t *)row)[i];
}

INLINE void convert_row(const int element, const void *row, float *out, int64_t n, int64_t padded) {
    int64_t i = 0;
    for (; i + WIDTH <= n; i += WIDTH) x_store(out + i, load_elements(element, row, i));
    for (; i < n; i++) out[i] = element_of(element, row, i);
    for (; i < padded; i++) out[i] = 0.0f;
}

INLINE void convert_rows(const int element, const void **rows, float *room, int32_t begin, int32_t end, int64_t n, int64_t padded) {
    for (int32_t key = begin; key < end; key++) {
        convert_row(element, rows[key], room + key * padded, n, padded);
        rows[key] = room + key * padded;
    }
}

static void convert_tile(const kv_t *kv, const void **rows, float *room, int32_t begin, int32_t end, int64_t padded) {
    if (kv->element == KV_F32) convert_rows(KV_F32, rows, room, begin, end, kv->head_size, padded);
    else if (kv->element == KV_F16) convert_rows(KV_F16, rows, room, begin, end, kv->head_size, padded);
    else if (kv->element == KV_BF16) convert_rows(KV_BF16, rows, room, begin, end, kv->head_size, padded);
    else convert_rows(KV_I8, rows, room, begin, end, kv->head_size, padded);
}

// Asks for the lines of positions [begin, end), which the next tile will read: two kilobytes here and two there are too little for the
// processor to notice a pattern in time.
static void prefetch_tile(const kv_t *kv, const int32_t *block_table, int32_t kv_head, int32_t begin, int32_t end) {
    const int64_t row_bytes = kv_row_bytes(kv);
    const int64_t values_at = (int64_t)kv->num_kv_heads * kv->block_size * row_bytes;
    while (begin < end) {
        const int32_t offset = begin % kv->block_size;
        const int32_t count = kv->block_size - offset < end - begin ? kv->block_size - offset : end - begin;
        const uint8_t *base = kv->data + (int64_t)block_table[begin / kv->block_size] * kv->block_bytes;
        const uint8_t *row = base + ((int64_t)kv_head * kv->block_size + offset) * row_bytes;
        for (int64_t at = 0; at < count * row_bytes; at += 64) v_prefetch(row + at);
        for (int64_t at = 0; at < count * row_bytes; at += 64) v_prefetch(row + values_at + at);
        begin += count;
    }
}

INLINE float row_scale(const kv_t *kv, const void *row) {
    float scale = 1.0f;
    if (kv->element == KV_I8) memcpy(&scale, (const int8_t *)row + kv->head_size, sizeof scale);
    return scale;
}

// Finds the rows of positions [tile + begin, tile + end) of a sequence, and converts them to float32 where that pays or where a head is
// no whole number of vectors. Codes become floats as they are, so that it makes no difference to a bit whether they were converted.
static void load_tile(const kv_t *kv, const int32_t *block_table, int32_t kv_head, int32_t tile, int32_t begin, int32_t end, group_t *group) {
    const int64_t row_bytes = kv_row_bytes(kv);
    const int64_t values_at = (int64_t)kv->num_kv_heads * kv->block_size * row_bytes;
    for (int32_t key = begin; key < end;) {
        const int32_t offset = (tile + key) % kv->block_size;
        const uint8_t *base = kv->data + (int64_t)block_table[(tile + key) / kv->block_size] * kv->block_bytes;
        const uint8_t *row = base + ((int64_t)kv_head * kv->block_size + offset) * row_bytes;
        for (int32_t i = offset; i < kv->block_size && key < end; i++, key++, row += row_bytes) {
            group->keys[key] = row;
            group->values[key] = row + values_at;
            group->key_scales[key] = row_scale(kv, row);
            group->value_scales[key] = row_scale(kv, row + values_at);
        }
    }
    group->element = kv->element;
    if (group->padded != kv->head_size || (kv->element != KV_F32 && group->count >= CONVERT)) {
        convert_tile(kv, group->keys, group->room, begin, end, group->padded);
        convert_tile(kv, group->values, group->room + TILE_KEYS * group->padded, begin, end, group->padded);
        group->element = KV_F32;
    }
    // Keys are scored in fours: what is beyond must be readable, nothing more.
    for (int32_t key = begin / 4 * 4; key < begin; key++) group->keys[key] = group->keys[begin];
    for (int32_t key = end; key % 4; key++) group->keys[key] = group->keys[begin];
}

static void load_queries(const attention_args_t *args, int64_t token, int32_t rows, int32_t position, int32_t kv_head, group_t *group) {
    const kv_t *kv = &args->kv;
    const int64_t row_size = (int64_t)(kv->num_heads + 2 * kv->num_kv_heads) * kv->head_size;
    group->count = rows * group->heads;
    for (int32_t q = 0; q < group->count; q++) {
        const int32_t row = q / group->heads, head = kv_head * group->heads + q % group->heads;
        const float *x = args->qkv + (token + row) * row_size + (int64_t)head * kv->head_size;
        float *query = group->queries + q * group->padded;
        v_scale(query, x, kv->scale, kv->head_size);
        if (kv->element == KV_I8) hadamard(query, query, kv->head_size); // as the keys are
        for (int64_t i = kv->head_size; i < group->padded; i++) query[i] = 0.0f;
        group->last[q] = position + row + 1;
        const int32_t first = kv->sliding_window ? group->last[q] - kv->sliding_window : 0;
        group->first[q] = first < 0 ? 0 : first;
        group->total_top[q] = -INFINITY;
        group->total_weight[q] = 0.0f;
        memset(group->total_sums + q * group->padded, 0, (size_t)group->padded * sizeof(float));
    }
}

// ---- One tile ----------------------------------------------------------------------------------------------------------------------

// Scores of `shared` queries and keys [begin, end), in fours: what lies beyond is computed too and ignored.
INLINE void score(const int shared, const int element, const group_t *group, int32_t q, int32_t begin, int32_t end) {
    const int64_t n = group->padded;
    const float *queries = group->queries + q * n;
    for (int32_t key = begin / 4 * 4; key < end; key += 4) {
        const void *const *keys = group->keys + key;
        vec sums[SHARED][4];
#pragma GCC unroll 4
        for (int s = 0; s < shared; s++)
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) sums[s][j] = x_set(0.0f);
        for (int64_t i = 0; i < n; i += WIDTH) {
            vec x[SHARED];
#pragma GCC unroll 4
            for (int s = 0; s < shared; s++) x[s] = x_load(queries + s * n + i);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++) {
                const vec k = load_elements(element, keys[j], i);
#pragma GCC unroll 4
                for (int s = 0; s < shared; s++) sums[s][j] = x_fma(x[s], k, sums[s][j]);
            }
        }
#pragma GCC unroll 4
        for (int s = 0; s < shared; s++) x_sum4(sums[s][0], sums[s][1], sums[s][2], sums[s][3], group->scores + (q + s) * TILE_KEYS + key);
    }
}

// Turns a query's scores of keys [begin, end) into weights of values; returns what its sums so far must be scaled by.
static float soften(group_t *group, int32_t q, int32_t begin, int32_t end) {
    const v8i lane = {0, 1, 2, 3, 4, 5, 6, 7};
    const v8i lowest = (v8i)v_set(-INFINITY);
    float *scores = group->scores + q * TILE_KEYS;
    v8i visible[TILE_KEYS / LANES];
    v8f top = v_set(group->top[q]);
    for (int v = 0; v < TILE_KEYS / LANES; v++) {
        const v8i key = lane + v * LANES;
        visible[v] = (key >= begin) & (key < end);
        v_store(scores + v * LANES, v_load(scores + v * LANES) * v_load(group->key_scales + v * LANES));
        top = v_max(top, (v8f)(((v8i)v_load(scores + v * LANES) & visible[v]) | (lowest & ~visible[v])));
    }
    const float new_top = v_max_lane(top);
    v8f weights[TILE_KEYS / LANES];
    for (int v = 0; v < TILE_KEYS / LANES; v++) {
        weights[v] = (v8f)((v8i)v_exp(v_load(scores + v * LANES) - new_top) & visible[v]);
        v_store(scores + v * LANES, weights[v] * v_load(group->value_scales + v * LANES));
    }
    const float scale = v_exp(v_set(group->top[q] - new_top))[0];
    group->weight[q] = group->weight[q] * scale + v_sum((weights[0] + weights[1]) + (weights[2] + weights[3]));
    group->top[q] = new_top;
    return scale;
}

// sums = sums * scale + weights @ values, for `vectors` vectors of the head from column `at`; keys in order.
INLINE void weigh_columns(const int shared, const int element, const int vectors, const group_t *group, int32_t q, const float *scale, int64_t at,
                          int32_t begin, int32_t end) {
    const int64_t n = group->padded;
    vec sums[SHARED][4];
#pragma GCC unroll 4
    for (int s = 0; s < shared; s++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[s][v] = x_mul(x_load(group->sums + (q + s) * n + at + v * WIDTH), x_set(scale[s]));
    for (int32_t key = begin; key < end; key++) {
        const float *weights = group->scores + q * TILE_KEYS + key;
        const void *row = group->values[key];
        // Named one by one, because gcc keeps an array of them in memory.
        const vec a = load_elements(element, row, at);
        const vec b = vectors > 1 ? load_elements(element, row, at + WIDTH) : a;
        const vec c = vectors > 1 ? load_elements(element, row, at + 2 * WIDTH) : a;
        const vec d = vectors > 1 ? load_elements(element, row, at + 3 * WIDTH) : a;
#pragma GCC unroll 4
        for (int s = 0; s < shared; s++) {
            const vec weight = x_set(weights[s * TILE_KEYS]);
            sums[s][0] = x_fma(weight, a, sums[s][0]);
            if (vectors > 1) {
                sums[s][1] = x_fma(weight, b, sums[s][1]);
                sums[s][2] = x_fma(weight, c, sums[s][2]);
                sums[s][3] = x_fma(weight, d, sums[s][3]);
            }
        }
    }
#pragma GCC unroll 4
    for (int s = 0; s < shared; s++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) x_store(group->sums + (q + s) * n + at + v * WIDTH, sums[s][v]);
}

INLINE void attend(const int shared, const int element, group_t *group, int32_t q, int32_t begin, int32_t end) {
    float scale[SHARED];
    score(shared, element, group, q, begin, end);
    for (int s = 0; s < shared; s++) scale[s] = soften(group, q + s, begin, end);
    int64_t at = 0;
    for (; at + 4 * WIDTH <= group->padded; at += 4 * WIDTH) weigh_columns(shared, element, 4, group, q, scale, at, begin, end);
    for (; at < group->padded; at += WIDTH) weigh_columns(shared, element, 1, group, q, scale, at, begin, end);
}

INLINE void attend_some(const int element, group_t *group, int32_t shared, int32_t q, int32_t begin, int32_t end) {
    if (shared == 1) attend(1, element, group, q, begin, end);
    else if (shared == 2) attend(2, element, group, q, begin, end);
    else if (shared == 3) attend(3, element, group, q, begin, end);
#ifdef WIDE_REGISTERS
    else attend(4, element, group, q, begin, end);
#endif
}

static int32_t clamp(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

// All queries of the group meet the loaded tile; runs of queries that see the same keys share its loads.
static void attend_tile(group_t *group, int32_t tile) {
    for (int32_t q = 0; q < group->count;) {
        const int32_t begin = clamp(group->first[q] - tile, 0, TILE_KEYS), end = clamp(group->last[q] - tile, 0, TILE_KEYS);
        int32_t shared = 1;
        while (shared < SHARED && q + shared < group->count && clamp(group->first[q + shared] - tile, 0, TILE_KEYS) == begin &&
               clamp(group->last[q + shared] - tile, 0, TILE_KEYS) == end)
            shared++;
        if (begin < end) {
            if (group->element == KV_F32) attend_some(KV_F32, group, shared, q, begin, end);
            else if (group->element == KV_F16) attend_some(KV_F16, group, shared, q, begin, end);
            else if (group->element == KV_BF16) attend_some(KV_BF16, group, shared, q, begin, end);
            else attend_some(KV_I8, group, shared, q, begin, end);
        }
        q += shared;
    }
}

#endif
