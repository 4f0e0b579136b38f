// The rotation that spreads a head's largest numbers before they are rounded to int8: kernels/kv_cache.py says why and which.
#ifndef OCTAVO_HADAMARD_H
#define OCTAVO_HADAMARD_H

#include "simd.h"

// Sums and differences of the lanes at distances 1, 2 and 4, as far as runs of `size` numbers go.
INLINE v8f hadamard_lanes(v8f x, int64_t size) {
    if (size > 1) x = V_SHUFFLE(x, 1, 0, 3, 2, 5, 4, 7, 6) + x * (v8f){1, -1, 1, -1, 1, -1, 1, -1};
    if (size > 2) x = V_SHUFFLE(x, 2, 3, 0, 1, 6, 7, 4, 5) + x * (v8f){1, 1, -1, -1, 1, 1, -1, -1};
    if (size > 4) x = V_SHUFFLE(x, 4, 5, 6, 7, 0, 1, 2, 3) + x * (v8f){1, 1, 1, 1, -1, -1, -1, -1};
    return x;
}

// out = the rotation of x, n numbers, in runs of the largest power of two that divides n. out may be x.
static inline void hadamard(float *out, const float *x, int64_t n) {
    const int64_t size = n & -n;
    const v8f factor = v_set(1.0f / sqrtf((float)size));
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(out + i, hadamard_lanes(v_load(x + i) * factor, size));
    if (i < n) v_store_part(out + i, hadamard_lanes(v_load_part(x + i, n - i) * factor, size), n - i); // runs of 4 or fewer
    for (int64_t distance = LANES; distance < size; distance *= 2) {
        for (i = 0; i < n; i += LANES) {
            if (i & distance) continue; // the partner of one before
            const v8f a = v_load(out + i), b = v_load(out + i + distance);
            v_store(out + i, a + b);
            v_store(out + i + distance, a - b);
        }
    }
}

#endif
