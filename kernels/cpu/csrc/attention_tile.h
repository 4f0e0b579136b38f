// A group of queries meets one tile of keys and values of the paged cache (attention.c says in which order).
#ifndef OCTAVO_ATTENTION_TILE_H
#define OCTAVO_ATTENTION_TILE_H

#include "attention_score.h"

#ifdef WIDE_REGISTERS
enum { SHARED = 4 }; // queries in registers at once: 16 sums of 32 registers
#else
enum { SHARED = 3 }; // 12 sums of 16 registers
#endif

static void start_segment(group_t *group) {
    memset(group->sums, 0, (size_t)(group->count * group->padded) * sizeof(float));
    memset(group->weight_lanes, 0, (size_t)group->count * WIDTH * sizeof(float));
    for (int32_t q = 0; q < group->count; q++) group->top[q] = -INFINITY;
}

static void end_segment(group_t *group) {
    for (int32_t q = 0; q < group->count; q++) group->weight[q] = x_sum(x_load(group->weight_lanes + q * WIDTH));
}

// Turns a query's scores of keys [begin, end) into weights of values, and finds what its sums so far must be scaled by.
INLINE void soften(const int is_int8, group_t *group, int32_t q, int32_t begin, int32_t end) {
    const vec lowest = x_set(-INFINITY);
    float *scores = group->scores + q * TILE_KEYS, *lanes = group->weight_lanes + q * WIDTH;
    const int32_t from = begin / WIDTH * WIDTH, is_whole = begin % WIDTH == 0 && end % WIDTH == 0;
    vec tops = x_set(group->top[q]);
    for (int32_t key = from; key < end; key += WIDTH) {
        vec x = x_load(scores + key);
        if (is_int8) x = x * x_load(group->key_scales + key);
        if (!is_whole) x = x_select(x_between(key, begin, end), x, lowest);
        x_store(scores + key, x);
        tops = x_max(tops, x);
    }
    const float top = x_max_lane(tops);
    group->scale[q] = top == group->top[q] ? 1.0f : v_exp(v_set(group->top[q] - top))[0];
    group->top[q] = top;
    vec sums = x_mul(x_load(lanes), x_set(group->scale[q]));
    for (int32_t key = from; key < end; key += WIDTH) {
        vec weights = x_exp(x_load(scores + key) - x_set(top));
        if (!is_whole) weights = x_select(x_between(key, begin, end), weights, x_set(0.0f)); // x_exp has no zero of its own
        sums += weights;
        if (is_int8) weights = weights * x_load(group->value_scales + key);
        x_store(scores + key, weights);
    }
    x_store(lanes, sums);
}

// sums = sums * scale + weights @ values, for `vectors` vectors of the head from column `at`; keys in order.
INLINE void weigh_columns(const int shared, const int element, const int vectors, const group_t *group, int32_t q, int64_t at, int32_t begin,
                          int32_t end) {
    const int64_t n = group->padded;
    vec sums[SHARED][4];
#pragma GCC unroll 4
    for (int s = 0; s < shared; s++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) sums[s][v] = x_mul(x_load(group->sums + (q + s) * n + at + v * WIDTH), x_set(group->scale[q + s]));
    for (int32_t key = begin; key < end; key++) {
        const float *weights = group->scores + q * TILE_KEYS + key;
        const uint8_t *row = group->keys[key] + group->values_at;
        if (q == 0 && at == 0) prefetch_row(group->next_keys[key] + group->next_values_at, group->row_bytes);
        vec x[SHARED];
#pragma GCC unroll 4
        for (int s = 0; s < shared; s++) x[s] = x_set(weights[s * TILE_KEYS]);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            const vec value = load_elements(element, row, at + v * WIDTH);
#pragma GCC unroll 4
            for (int s = 0; s < shared; s++) sums[s][v] = x_fma(x[s], value, sums[s][v]);
        }
    }
#pragma GCC unroll 4
    for (int s = 0; s < shared; s++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) x_store(group->sums + (q + s) * n + at + v * WIDTH, sums[s][v]);
}

INLINE void weigh(const int shared, const int element, const group_t *group, int32_t q, int32_t begin, int32_t end) {
    int64_t at = 0;
    for (; at + 4 * WIDTH <= group->padded; at += 4 * WIDTH) weigh_columns(shared, element, 4, group, q, at, begin, end);
    for (; at < group->padded; at += WIDTH) weigh_columns(shared, element, 1, group, q, at, begin, end);
}

// A run of queries that see the same keys.
INLINE void attend_run(const int shared, const int element, group_t *group, int32_t q, int32_t begin, int32_t end) {
    if (!group->by_columns) {
        if (shared <= SCORED) {
            score_rows(shared, element, group, q, begin, end);
        } else {
            score_rows(shared / 2, element, group, q, begin, end);
            score_rows(shared - shared / 2, element, group, q + shared / 2, begin, end);
        }
    }
    for (int s = 0; s < shared; s++) {
        if (group->is_int8) soften(1, group, q + s, begin, end);
        else soften(0, group, q + s, begin, end);
    }
    weigh(shared, element, group, q, begin, end);
}

INLINE void attend_some(const int element, group_t *group, int32_t shared, int32_t q, int32_t begin, int32_t end) {
    if (shared == 1) attend_run(1, element, group, q, begin, end);
    else if (shared == 2) attend_run(2, element, group, q, begin, end);
    else if (shared == 3) attend_run(3, element, group, q, begin, end);
#ifdef WIDE_REGISTERS
    else attend_run(4, element, group, q, begin, end);
#endif
}

// All queries of the group meet the loaded tile; runs of queries that see the same keys share its loads.
static void attend_tile(group_t *group, int32_t tile) {
    const int32_t low = clamp(group->first[0] - tile, 0, TILE_KEYS), high = clamp(group->last[group->count - 1] - tile, 0, TILE_KEYS);
    if (group->by_columns) score_columns(group, low, high);
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
