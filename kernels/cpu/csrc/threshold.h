// The value at which the largest of some values reach a given weight, found without sorting them.
#ifndef OCTAVO_THRESHOLD_H
#define OCTAVO_THRESHOLD_H

#include <stdint.h>
#include <string.h>

#include "widest.h"

enum { NUM_BUCKETS = 512 };
enum { BY_COUNT = 0, BY_VALUE = 1 }; // each value weighs 1, or as much as it is

// Floats as integers of the same order.
INLINE uint32_t sortable(float x) {
    uint32_t bits;
    x += 0.0f; // -0 becomes 0, its equal
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

INLINE float unsortable(uint32_t key) {
    const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

typedef struct {
    float least, most;
} range_t;

static inline range_t range_of(const float *values, int64_t n) {
    range_t range = {values[0], values[0]};
    int64_t i = 0;
    if (n >= WIDTH) {
        vec negated_least = -x_load(values), most = x_load(values);
        for (; i + WIDTH <= n; i += WIDTH) {
            negated_least = x_max(negated_least, -x_load(values + i));
            most = x_max(most, x_load(values + i));
        }
        range = (range_t){-x_max_lane(negated_least), x_max_lane(most)};
    }
    for (; i < n; i++) range = (range_t){fminf(range.least, values[i]), fmaxf(range.most, values[i])};
    return range;
}

// Puts the values from low to high on a list, which may be where they are; returns how many. The list has room for WIDTH more.
static inline int64_t keep_between(const float *values, int64_t n, float low, float high, float *list) {
    int64_t kept = 0, i = 0;
    for (; i + WIDTH <= n; i += WIDTH) {
        const vec x = x_load(values + i);
        kept += x_store_some(list + kept, x, x_at_least(x, x_set(low)) & x_at_least(x_set(high), x));
    }
    if (i == n) return kept;
    float rest[WIDTH];
    memcpy(rest, values + i, (size_t)(n - i) * sizeof *rest);
    for (int64_t j = 0; j < n - i; j++)
        if (rest[j] >= low && rest[j] <= high) list[kept++] = rest[j];
    return kept;
}

// The largest t such that the values >= t weigh at least `needed` together; the least value if all weigh less. There is at least one
// value, none is NaN, and sums of their weights must be exact in float64. The values are lost; `sums` has room for NUM_BUCKETS.
//
// The range of the values left, as integers, is cut into buckets; the sums per bucket tell in which one the sum from above gets there, and
// the values of that one are left. Every round divides the range by NUM_BUCKETS, or nearly so, and most divide the values by many too.
static inline float threshold(float *values, int64_t n, double needed, int weighed, double *sums) {
    double above = 0.0; // weight of the values that are larger than any left
    for (;;) {
        const range_t range = range_of(values, n);
        if (range.least == range.most) return range.least;
        const uint32_t first = sortable(range.least), last = sortable(range.most);
        int shift = 0;
        while ((last - first) >> shift >= NUM_BUCKETS) shift++;
        uint32_t bucket = (last - first) >> shift;
        memset(sums, 0, (bucket + 1) * sizeof *sums);
        for (int64_t i = 0; i < n; i++) sums[(sortable(values[i]) - first) >> shift] += weighed == BY_VALUE ? (double)values[i] : 1.0;
        for (; bucket && above + sums[bucket] < needed; bucket--) above += sums[bucket];
        const uint32_t low = first + (bucket << shift), width = 1u << shift;
        n = keep_between(values, n, unsortable(low), last - low < width ? range.most : unsortable(low + width - 1), values);
    }
}

#endif
