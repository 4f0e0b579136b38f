// A group of queries that walk over the same keys: rows of one sequence, times the heads of one kv head.
#ifndef OCTAVO_ATTENTION_GROUP_H
#define OCTAVO_ATTENTION_GROUP_H

#include "hadamard.h"
#include "octavo.h"
#include "softmax.h"

enum {
    TILE_KEYS = 64, // whole vectors of any width
    QUERIES = 48, // about this many queries per item
};

// What the queries are and what they have gathered so far. All in the thread's scratch memory.
typedef struct {
    int32_t count; // rows * heads per kv head, row by row
    int32_t heads; // per kv head
    int64_t padded; // head size rounded up to whole vectors
    int32_t element; // KV_*, of the rows below
    int32_t is_int8; // the cache's rows are codes, with scales
    int32_t by_columns; // the tile's keys lie transposed in the room below, and `keys` only leads to the values
    const uint8_t **keys; // [TILE_KEYS]: rows of the tile, in the cache, or converted in the room below
    int64_t values_at; // a key's value is so many bytes behind it
    const uint8_t **next_keys; // [TILE_KEYS]: rows of the tile after it, in the cache; anything beyond the context's end
    int64_t row_bytes, next_values_at; // of the cache
    float key_scales[TILE_KEYS], value_scales[TILE_KEYS]; // of int8, whose rows are codes: what they must be multiplied by
    float *room; // for converted rows: keys [padded, TILE_KEYS] if by_columns, else [TILE_KEYS, padded]; then values [TILE_KEYS, padded]
    float *queries; // [count, padded], scaled, and room for a few more
    float *scores; // [count, TILE_KEYS], and room for a few more
    float *sums; // [count, padded], of the segment: values weighted by exp(score - top)
    float *weight_lanes; // [count, WIDTH], of the segment: sums of exp(score - top), lane by lane
    float *top, *weight; // [count], of the segment: largest score, and sum of exp(score - top)
    float *scale; // [count]: what the sums must be multiplied by, since the tile has a larger score
    float *total_sums, *total_top, *total_weight; // the same over all segments merged so far
    int32_t *first, *last; // [count]: the query sees keys at positions [first, last)
} group_t;

static int32_t clamp(int32_t x, int32_t low, int32_t high) { return x < low ? low : x > high ? high : x; }

static int64_t padded_size(const kv_t *kv) { return (kv->head_size + WIDTH - 1) / WIDTH * WIDTH; }

static int32_t heads_per_kv_head(const kv_t *kv) { return kv->num_heads / kv->num_kv_heads; }

static int32_t rows_per_item(const kv_t *kv) {
    const int32_t rows = QUERIES / heads_per_kv_head(kv);
    return rows < 1 ? 1 : rows;
}

// The next n floats of a piece of memory; whole cache lines, so that vectors lie in one.
static float *take(float **memory, int64_t n) {
    float *out = *memory;
    *memory += (n + 15) / 16 * 16;
    return out;
}

static void make_group(worker_t *worker, const kv_t *kv, group_t *group) {
    const int64_t padded = padded_size(kv), most = (int64_t)rows_per_item(kv) * heads_per_kv_head(kv);
    const int64_t floats = 2 * TILE_KEYS * padded + (most + 3) * (3 * padded + TILE_KEYS + WIDTH + 7) + 4 * TILE_KEYS + 16 * 16;
    float *memory = scratch(worker, (size_t)floats * sizeof(float));
    group->heads = heads_per_kv_head(kv);
    group->padded = padded;
    group->is_int8 = kv->element == KV_I8;
    group->row_bytes = kv_row_bytes(kv);
    group->next_values_at = (int64_t)kv->num_kv_heads * kv->block_size * group->row_bytes;
    group->keys = (const uint8_t **)take(&memory, 2 * TILE_KEYS);
    group->next_keys = (const uint8_t **)take(&memory, 2 * TILE_KEYS);
    memset(group->next_keys, 0, TILE_KEYS * sizeof *group->next_keys);
    memset(group->keys, 0, TILE_KEYS * sizeof *group->keys);
    group->room = take(&memory, 2 * TILE_KEYS * padded);
    group->queries = take(&memory, (most + 3) * padded);
    group->scores = take(&memory, (most + 3) * TILE_KEYS);
    group->sums = take(&memory, most * padded);
    group->total_sums = take(&memory, most * padded);
    group->weight_lanes = take(&memory, most * WIDTH);
    group->top = take(&memory, most);
    group->weight = take(&memory, most);
    group->scale = take(&memory, most);
    group->total_top = take(&memory, most);
    group->total_weight = take(&memory, most);
    group->first = (int32_t *)take(&memory, most);
    group->last = (int32_t *)take(&memory, most);
}

// Rows [token, token + rows) of a sequence, of which the first is at `position`.
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

#endif
