// A row of logits: its largest, its softmax's sum, and the short list of the tokens near the largest.
#ifndef OCTAVO_LOGITS_H
#define OCTAVO_LOGITS_H

#include <math.h>
#include <stdint.h>

#include "simd.h"

enum { BLOCK = 256 }; // tokens whose weights are summed before the sums are

// How far below the largest tempered logit the first short list goes, how much further each next one, and beyond which it is the whole row.
static const float SHORT_LIST = 8.0f, LONGER_LIST = 1.5f, LONGEST_LIST = 64.0f;
static const float LEAST_EXPONENT = -87.0f; // below it a weight is zero

typedef double v8d __attribute__((vector_size(64)));

typedef struct {
    const float *logits;
    int64_t size;
    float temperature;
    float largest; // tempered
    float floor; // tempered logits below it are out, by min_p
    int64_t top_k; // 0: all
    double top_p;
} row_t;

// Tokens in the order of their ids.
typedef struct {
    float *x; // tempered logits
    float *weights; // exp(x - largest), the softmax but for a factor
    int32_t *ids;
    double *sums; // working space of weight_threshold
    int64_t size;
} list_t;

INLINE int v_bits(v8i mask) {
#ifdef __AVX2__
    return _mm256_movemask_ps((__m256)mask);
#else
    int bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (mask[i] & 1) << i;
    return bits;
#endif
}

INLINE v8f weight(v8f x, float largest) {
    const v8f exponent = x - largest;
    return (v8f)((v8i)v_exp(exponent) & (exponent >= LEAST_EXPONENT));
}

INLINE double sum_lanes(v8d x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

// Logits [i, i + 8), -infinity past the end.
INLINE v8f load(const row_t *row, int64_t i) {
    if (i + LANES <= row->size) return v_load(row->logits + i);
    v8f x = v_set(-INFINITY);
    for (int64_t j = 0; i + j < row->size; j++) x[j] = row->logits[i + j];
    return x;
}

// The first of the largest logits; -1 if that is not finite, or if one is not a number.
static inline int64_t find_largest(const row_t *row) {
    v8f best = v_set(-INFINITY);
    v8i bad = (v8i)v_set(0.0f);
    for (int64_t i = 0; i < row->size; i += LANES) {
        const v8f x = load(row, i);
        bad |= x != x;
        best = v_max(best, x);
    }
    const float largest = v_max_lane(best);
    if (v_bits(bad) || !isfinite(largest)) return -1;
    for (int64_t i = 0; i < row->size; i += LANES) {
        const int found = v_bits(load(row, i) == largest);
        if (found) return i + __builtin_ctz((unsigned)found);
    }
    return -1;
}

// Sums the weights of all tokens that min_p keeps. If asked for, stores them, and the sum of each block.
static inline double sum_weights(const row_t *row, float *weights, double *block_sums) {
    double total = 0.0;
    for (int64_t begin = 0; begin < row->size; begin += BLOCK) {
        const int64_t end = begin + BLOCK < row->size ? begin + BLOCK : row->size;
        v8d sum = {0};
        for (int64_t i = begin; i < end; i += LANES) {
            const v8f x = load(row, i) / row->temperature;
            const v8f w = (v8f)((v8i)weight(x, row->largest) & (x >= row->floor));
            sum += __builtin_convertvector(w, v8d);
            if (weights) v_store(weights + i, w);
        }
        const double block = sum_lanes(sum);
        if (block_sums) block_sums[begin / BLOCK] = block;
        total += block;
    }
    return total;
}

// Puts the tokens whose tempered logit is at least `least` on the list.
static inline void collect(const row_t *row, float least, list_t *list) {
    list->size = 0;
    for (int64_t i = 0; i < row->size; i += LANES) {
        const v8f x = load(row, i) / row->temperature;
        const int in_row = i + LANES <= row->size ? 0xff : (1 << (row->size - i)) - 1;
        for (int found = v_bits(x >= least) & in_row; found; found &= found - 1) {
            const int lane = __builtin_ctz((unsigned)found);
            list->x[list->size] = x[lane];
            list->ids[list->size++] = (int32_t)(i + lane);
        }
    }
}

#endif
