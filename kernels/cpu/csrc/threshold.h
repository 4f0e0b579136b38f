// The value at which the largest of some values reach a given weight, found without sorting them.
#ifndef OCTAVO_THRESHOLD_H
#define OCTAVO_THRESHOLD_H

#include <stdint.h>
#include <string.h>

enum { NUM_DIGITS = 2048 };

// Floats as integers of the same order.
static inline uint32_t sortable(float x) {
    uint32_t bits;
    x += 0.0f; // -0 becomes 0, its equal
    memcpy(&bits, &x, sizeof bits);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static inline float unsortable(uint32_t key) {
    const uint32_t bits = key & 0x80000000u ? key & 0x7fffffffu : ~key;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

// The largest t such that the values >= t weigh at least `needed` (above 0) together; the least value if all weigh less. Without
// `weights` each weighs 1. A radix selection from the highest digit down: each pass finds one digit of the key of t, as sums per digit
// tell which digit the sum from above is reached in. `sums` has room for NUM_DIGITS. Sums are of float64, in the order of the values.
static inline float weight_threshold(const float *values, const float *weights, int64_t n, double needed, double *sums) {
    static const int shifts[] = {21, 10, 0}, widths[] = {11, 11, 10};
    uint32_t prefix = 0; // the digits of t found so far
    double above = 0.0; // weight of the values that are larger than any that begins with the prefix
    for (int pass = 0; pass < 3; pass++) {
        const int shift = shifts[pass], width = widths[pass];
        const uint32_t num_digits = 1u << width;
        memset(sums, 0, num_digits * sizeof *sums);
        for (int64_t i = 0; i < n; i++) {
            const uint32_t key = sortable(values[i]);
            if ((uint64_t)key >> (shift + width) == prefix) sums[key >> shift & (num_digits - 1)] += weights ? (double)weights[i] : 1.0;
        }
        uint32_t digit = 0;
        double sum = above;
        for (uint32_t d = num_digits; d-- > 0;) {
            if (sums[d] == 0.0) continue;
            digit = d, above = sum, sum += sums[d];
            if (sum >= needed) break;
        }
        prefix = prefix << width | digit;
    }
    return unsortable(prefix);
}

#endif
