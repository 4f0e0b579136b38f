// Transposing eight vectors of eight floats.
#ifndef OCTAVO_TRANSPOSE_H
#define OCTAVO_TRANSPOSE_H

#include "simd.h"

#ifdef __clang__
#define V_SHUFFLE_TWO(x, y, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define V_SHUFFLE_TWO(x, y, ...) __builtin_shuffle(x, y, (v8i){__VA_ARGS__})
#endif

// x[i][j] and x[j][i] change places: pairs of lanes, then pairs of pairs, then halves.
INLINE void v_transpose(v8f x[LANES]) {
    v8f pairs[LANES], fours[LANES];
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 2) {
        pairs[i] = V_SHUFFLE_TWO(x[i], x[i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        pairs[i + 1] = V_SHUFFLE_TWO(x[i], x[i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < LANES; i += 4) {
        fours[i] = V_SHUFFLE_TWO(pairs[i], pairs[i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[i + 1] = V_SHUFFLE_TWO(pairs[i], pairs[i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        fours[i + 2] = V_SHUFFLE_TWO(pairs[i + 1], pairs[i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        fours[i + 3] = V_SHUFFLE_TWO(pairs[i + 1], pairs[i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        x[i] = V_SHUFFLE_TWO(fours[i], fours[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        x[i + 4] = V_SHUFFLE_TWO(fours[i], fours[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

#endif
