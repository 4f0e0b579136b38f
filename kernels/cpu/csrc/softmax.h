// What a softmax needs of the widest registers beside widest.h: exponentials, lanes in a range, sums of lanes.
#ifndef OCTAVO_SOFTMAX_H
#define OCTAVO_SOFTMAX_H

#include "widest.h"

// Which of the lanes [first, first + WIDTH) are in [begin, end): all bits set, or none.
INLINE x_int x_between(int32_t first, int32_t begin, int32_t end) {
    x_int lane;
    for (int i = 0; i < WIDTH; i++) lane[i] = i;
    return ((lane + first) >= begin) & ((lane + first) < end);
}
INLINE vec x_select(x_int mask, vec a, vec b) { return (vec)((mask & (x_int)a) | (~mask & (x_int)b)); }

#ifdef WIDE_REGISTERS

// As v_exp.
INLINE vec x_exp(vec x) {
    x = x_max(x_set(-87.0f), _mm512_min_ps(x_set(88.0f), x));
    const v16i n = _mm512_cvtps_epi32(x * 1.44269504088896341f);
    const vec r = EXP_REST(x_fma, x_set, w_float(n), x);
    return EXP_OF_REST(x_fma, x_set, r) * (vec)(((x_int)n + 127) << 23);
}

INLINE float x_sum(vec x) { return v_sum(x_half(x, 0) + x_half(x, 1)); }

// The sums of the lanes of eight vectors, each added up as x_sum4 does.
INLINE void x_sum8(const vec *x, float *out) {
    vec halves[4], pairs[2];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) // lanes l + (l + 8): 8 of x[2 * i], 8 of x[2 * i + 1]
        halves[i] = _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0x44) + _mm512_shuffle_f32x4(x[2 * i], x[2 * i + 1], 0xee);
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) // and l + (l + 1)
        pairs[i] = _mm512_shuffle_ps(halves[2 * i], halves[2 * i + 1], 0x88) + _mm512_shuffle_ps(halves[2 * i], halves[2 * i + 1], 0xdd);
    vec sums = _mm512_shuffle_ps(pairs[0], pairs[1], 0x88) + _mm512_shuffle_ps(pairs[0], pairs[1], 0xdd); // and l + (l + 2)
    sums = sums + _mm512_shuffle_f32x4(sums, sums, 0xb1); // and l + (l + 4): of x 0, 2, 4, 6, twice, then of 1, 3, 5, 7, twice
    const __m512i order = _mm512_setr_epi32(0, 8, 1, 9, 2, 10, 3, 11, 0, 0, 0, 0, 0, 0, 0, 0);
    v_store(out, x_half(_mm512_permutexvar_ps(order, sums), 0));
}

#else

INLINE vec x_exp(vec x) { return v_exp(x); }
INLINE float x_sum(vec x) { return v_sum(x); }

#endif

#endif
