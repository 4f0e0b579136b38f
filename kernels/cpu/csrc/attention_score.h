// Products of queries and the keys of a tile.
//
// A product is a sum of WIDTH lanes, lane l that of dimensions l, l + WIDTH, ... in order, and the lanes are added as x_sum4 does. Two ways
// of getting there, with the same bits: along rows of keys, for few queries, and along columns, a key to a lane, where no lanes of
// one register need be added.
#ifndef OCTAVO_ATTENTION_SCORE_H
#define OCTAVO_ATTENTION_SCORE_H

#include "attention_load.h"

// ---- By rows -----------------------------------------------------------------------------------------------------------------------

#ifdef WIDE_REGISTERS
enum { KEYS_AT_ONCE = 8, SCORED = 3 }; // 24 sums of 32 registers
INLINE void sum_lanes(const vec *sums, float *out) { x_sum8(sums, out); }
#else
enum { KEYS_AT_ONCE = 4, SCORED = 3 }; // 12 sums of 16 registers
INLINE void sum_lanes(const vec *sums, float *out) { x_sum4(sums[0], sums[1], sums[2], sums[3], out); }
#endif

// Scores of `scored` queries and keys [begin, end), several at once: what lies beyond is computed too and ignored.
INLINE void score_rows(const int scored, const int element, const group_t *group, int32_t q, int32_t begin, int32_t end) {
    const int64_t n = group->padded;
    const float *queries = group->queries + q * n;
    for (int32_t key = begin / KEYS_AT_ONCE * KEYS_AT_ONCE; key < end; key += KEYS_AT_ONCE) {
        const uint8_t *const *keys = group->keys + key;
        if (q == 0)
            for (int j = 0; j < KEYS_AT_ONCE; j++) prefetch_row(group->next_keys[key + j], group->row_bytes);
        vec sums[SCORED][KEYS_AT_ONCE];
#pragma GCC unroll 3
        for (int s = 0; s < scored; s++)
#pragma GCC unroll 8
            for (int j = 0; j < KEYS_AT_ONCE; j++) sums[s][j] = x_set(0.0f);
        for (int64_t i = 0; i < n; i += WIDTH) {
            vec x[SCORED];
#pragma GCC unroll 3
            for (int s = 0; s < scored; s++) x[s] = x_load(queries + s * n + i);
#pragma GCC unroll 8
            for (int j = 0; j < KEYS_AT_ONCE; j++) {
                const vec k = load_elements(element, keys[j], i);
#pragma GCC unroll 3
                for (int s = 0; s < scored; s++) sums[s][j] = x_fma(x[s], k, sums[s][j]);
            }
        }
#pragma GCC unroll 3
        for (int s = 0; s < scored; s++) sum_lanes(sums[s], group->scores + (q + s) * TILE_KEYS + key);
    }
}

// ---- By columns --------------------------------------------------------------------------------------------------------------------

enum { ABREAST = 4 }; // queries: 8 sums in registers, beside two vectors of keys

// Products of a few queries with two vectors of keys.
typedef struct {
    vec of[ABREAST][2];
} scores_t;

INLINE scores_t add_scores(scores_t x, scores_t y) {
#pragma GCC unroll 4
    for (int q = 0; q < ABREAST; q++) {
        x.of[q][0] += y.of[q][0];
        x.of[q][1] += y.of[q][1];
    }
    return x;
}

// One lane's sum: dimensions l, l + WIDTH, ...
INLINE scores_t lane_sum(const float *queries, const float *columns, int64_t n, int64_t l) {
    scores_t out;
#pragma GCC unroll 4
    for (int q = 0; q < ABREAST; q++) out.of[q][0] = out.of[q][1] = x_set(0.0f);
    for (int64_t i = l; i < n; i += WIDTH) {
        const vec first = x_load(columns + i * TILE_KEYS), second = x_load(columns + i * TILE_KEYS + WIDTH);
#pragma GCC unroll 4
        for (int q = 0; q < ABREAST; q++) {
            const vec x = x_set(queries[q * n + i]);
            out.of[q][0] = x_fma(x, first, out.of[q][0]);
            out.of[q][1] = x_fma(x, second, out.of[q][1]);
        }
    }
    return out;
}

INLINE scores_t first_sum(const float *queries, const float *columns, int64_t n, int64_t l) {
    const scores_t out = lane_sum(queries, columns, n, l);
    return HALVES == 1 ? out : add_scores(out, lane_sum(queries, columns, n, l + LANES));
}

INLINE scores_t sum_of_two(const float *queries, const float *columns, int64_t n, int64_t l) {
    return add_scores(first_sum(queries, columns, n, l), first_sum(queries, columns, n, l + 1));
}

INLINE scores_t sum_of_four(const float *queries, const float *columns, int64_t n, int64_t l) {
    return add_scores(sum_of_two(queries, columns, n, l), sum_of_two(queries, columns, n, l + 2));
}

// Scores of all the group's queries and the whole vectors that keys [begin, end) lie in.
static void score_columns(const group_t *group, int32_t begin, int32_t end) {
    const int64_t n = group->padded;
    for (int32_t q = 0; q < group->count; q += ABREAST) {
        const float *queries = group->queries + q * n;
        for (int32_t key = begin / (2 * WIDTH) * (2 * WIDTH); key < end; key += 2 * WIDTH) {
            const float *columns = group->room + key;
            const scores_t sums = add_scores(sum_of_four(queries, columns, n, 0), sum_of_four(queries, columns, n, 4));
            float *scores = group->scores + q * TILE_KEYS + key;
            for (int s = 0; s < ABREAST; s++, scores += TILE_KEYS) {
                x_store(scores, sums.of[s][0]);
                x_store(scores + WIDTH, sums.of[s][1]);
            }
        }
    }
}

#endif
