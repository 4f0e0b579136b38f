// A row of logits: its largest, block by block and all in all, and its k-th largest.
#ifndef OCTAVO_LOGITS_H
#define OCTAVO_LOGITS_H

#include <math.h>
#include <stdint.h>

#include "threshold.h"
#include "widest.h"

enum { BLOCK = 256 }; // tokens of which one knows the largest logits, and sums the weights, together

typedef struct {
    const float *logits;
    int64_t size;
    vec *maxima; // [num_blocks(size)] of each block, lane by lane
} row_t;

static inline int64_t num_blocks(int64_t size) { return (size + BLOCK - 1) / BLOCK; }

// Logits [i, i + WIDTH), -infinity past the end.
INLINE vec load(const row_t *row, int64_t i) {
    if (i + WIDTH <= row->size) return x_load(row->logits + i);
    float part[WIDTH];
    for (int64_t j = 0; j < WIDTH; j++) part[j] = i + j < row->size ? row->logits[i + j] : -INFINITY;
    return x_load(part);
}

INLINE float block_largest(const row_t *row, int64_t block) { return x_max_lane(row->maxima[block]); }

// The first of the largest logits; -1 if that is not finite, or if one is not a number. Fills in the blocks' maxima.
static inline int64_t find_largest(const row_t *row) {
    uint32_t bad = 0;
    vec best = x_set(-INFINITY);
    for (int64_t begin = 0; begin < row->size; begin += BLOCK) {
        const int64_t end = begin + BLOCK < row->size ? begin + BLOCK : row->size;
        vec most = x_set(-INFINITY);
        for (int64_t i = begin; i < end; i += WIDTH) {
            const vec x = load(row, i);
            bad |= ~x_at_least(x, x);
            most = x_max(most, x);
        }
        row->maxima[begin / BLOCK] = most;
        best = x_max(best, most);
    }
    const float largest = x_max_lane(best);
    if (bad & ALL_LANES || !isfinite(largest)) return -1;
    int64_t i = 0;
    while (!x_at_least(row->maxima[i / BLOCK], x_set(largest))) i += BLOCK;
    while (row->logits[i] != largest) i++;
    return i;
}

// Puts the logits of at least `least` on a list, and their tokens if asked for, in the order of the tokens. Returns how many.
static inline int64_t collect(const row_t *row, float least, float *list, int32_t *ids) {
    int64_t size = 0;
    for (int64_t begin = 0; begin < row->size; begin += BLOCK) {
        if (block_largest(row, begin / BLOCK) < least) continue;
        const int64_t end = begin + BLOCK < row->size ? begin + BLOCK : row->size;
        for (int64_t i = begin; i < end; i += WIDTH) {
            for (uint32_t found = x_at_least(load(row, i), x_set(least)); found; found &= found - 1) {
                const int64_t j = i + __builtin_ctz(found);
                if (j >= end) break; // only where all are wanted
                list[size] = row->logits[j];
                if (ids) ids[size] = (int32_t)j;
                size++;
            }
        }
    }
    return size;
}

// The k-th largest logit, for k from 1 to the row's size. `list` has room for the row and `WIDTH` more.
static inline float kth_largest(const row_t *row, int64_t k, float *list, double *sums) {
    // Where k of the maxima, be they of blocks or of their lanes, reach a value, k logits do: so the k-th largest maximum is no more than
    // what is looked for, and often close.
    const int64_t blocks = num_blocks(row->size);
    float least = -INFINITY;
    if (k <= blocks) {
        for (int64_t block = 0; block < blocks; block++) list[block] = block_largest(row, block);
        least = threshold(list, blocks, (double)k, BY_COUNT, sums);
    } else if (k <= blocks * WIDTH) {
        memcpy(list, row->maxima, (size_t)(blocks * WIDTH) * sizeof *list);
        least = threshold(list, blocks * WIDTH, (double)k, BY_COUNT, sums);
    }
    return threshold(list, collect(row, least, list, NULL), (double)k, BY_COUNT, sums);
}

#endif
