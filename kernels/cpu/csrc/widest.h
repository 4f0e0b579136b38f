// The widest register of floats that the machine has: 16 with AVX-512, else 8. For sums whose order may differ between machines but
// never on one.
#ifndef OCTAVO_WIDEST_H
#define OCTAVO_WIDEST_H

#include "simd16.h"

#ifdef WIDE_REGISTERS

enum { WIDTH = 16 };

typedef v16f vec;

INLINE vec x_set(float x) { return w_set(x); }
INLINE vec x_load(const float *p) { return w_load(p); }
INLINE vec x_load_half(const uint16_t *p) { return w_load_half(p); }
INLINE vec x_load_bfloat(const uint16_t *p) { return w_load_bfloat(p); }
INLINE vec x_load_int8(const int8_t *p) { return w_float(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
INLINE void x_store(float *p, vec x) { w_store(p, x); }
INLINE vec x_mul(vec a, vec b) { return w_mul(a, b); }
INLINE vec x_fma(vec a, vec b, vec c) { return w_fma(a, b, c); }
INLINE vec x_max(vec a, vec b) { return _mm512_max_ps(a, b); }
INLINE vec x_rint(vec x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE uint32_t x_at_least(vec a, vec b) { return _mm512_cmp_ps_mask(a, b, _CMP_GE_OQ); }
INLINE vec x_where_at_least(vec x, vec a, vec b) { return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(a, b, _CMP_GE_OQ), x); }
// Stores the lanes of x whose bits are set side by side, and anything behind them; returns how many.
INLINE int64_t x_store_some(float *p, vec x, uint32_t bits) {
    _mm512_storeu_ps(p, _mm512_maskz_compress_ps((__mmask16)bits, x));
    return __builtin_popcount(bits);
}
INLINE v8f x_half(vec x, int half) { return (v8f)(half ? _mm512_extractf32x8_ps(x, 1) : _mm512_castps512_ps256(x)); }

typedef __m512d doubles;

INLINE doubles d_add(doubles sums, v8f x) { return sums + _mm512_cvtps_pd((__m256)x); }
INLINE double d_sum(doubles x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

// The sums of the lanes of four vectors: the upper half is added to the lower, then as v_sum4.
INLINE void x_sum4(vec a, vec b, vec c, vec d, float *out) {
    const v8f folded[4] = {(v8f)_mm512_castps512_ps256(a) + (v8f)_mm512_extractf32x8_ps(a, 1),
                           (v8f)_mm512_castps512_ps256(b) + (v8f)_mm512_extractf32x8_ps(b, 1),
                           (v8f)_mm512_castps512_ps256(c) + (v8f)_mm512_extractf32x8_ps(c, 1),
                           (v8f)_mm512_castps512_ps256(d) + (v8f)_mm512_extractf32x8_ps(d, 1)};
    v_sum4(folded[0], folded[1], folded[2], folded[3], out);
}

#else

enum { WIDTH = LANES };

typedef v8f vec;

INLINE vec x_set(float x) { return v_set(x); }
INLINE vec x_load(const float *p) { return v_load(p); }
INLINE vec x_load_half(const uint16_t *p) { return v_load_half(p); }
INLINE vec x_load_bfloat(const uint16_t *p) { return v_load_bfloat(p); }
INLINE vec x_load_int8(const int8_t *p) { return v_load_int8(p); }
INLINE void x_store(float *p, vec x) { v_store(p, x); }
INLINE vec x_mul(vec a, vec b) { return a * b; }
INLINE vec x_fma(vec a, vec b, vec c) { return v_fma(a, b, c); }
INLINE vec x_max(vec a, vec b) { return v_max(a, b); }
INLINE vec x_rint(vec x) { return v_rint(x); }
INLINE uint32_t x_at_least(vec a, vec b) { return v_bits(a >= b); }
INLINE vec x_where_at_least(vec x, vec a, vec b) { return (vec)((v8i)x & (a >= b)); }
INLINE int64_t x_store_some(float *p, vec x, uint32_t bits) {
    float lanes[WIDTH];
    x_store(lanes, x);
    int64_t stored = 0;
    for (; bits; bits &= bits - 1) p[stored++] = lanes[__builtin_ctz(bits)];
    return stored;
}
INLINE v8f x_half(vec x, int half) { return (void)half, x; }

typedef float v4f __attribute__((vector_size(16)));
typedef double v4d __attribute__((vector_size(32)));
typedef struct {
    v4d half[2];
} doubles;

INLINE doubles d_add(doubles sums, v8f x) {
#ifdef __AVX2__
    const v4d low = (v4d)_mm256_cvtps_pd(_mm256_castps256_ps128((__m256)x)), high = (v4d)_mm256_cvtps_pd(_mm256_extractf128_ps((__m256)x, 1));
    return (doubles){{sums.half[0] + low, sums.half[1] + high}};
#else
    const union { v8f whole; v4f half[2]; } in = {x};
    return (doubles){{sums.half[0] + __builtin_convertvector(in.half[0], v4d), sums.half[1] + __builtin_convertvector(in.half[1], v4d)}};
#endif
}
INLINE double d_sum(doubles x) {
    return ((x.half[0][0] + x.half[0][1]) + (x.half[0][2] + x.half[0][3])) + ((x.half[1][0] + x.half[1][1]) + (x.half[1][2] + x.half[1][3]));
}

INLINE void x_sum4(vec a, vec b, vec c, vec d, float *out) { v_sum4(a, b, c, d, out); }

#endif

enum { HALVES = WIDTH / LANES }; // of a register, with eight floats each
static const uint32_t ALL_LANES = (1u << WIDTH) - 1; // what x_at_least gives where all are

typedef int32_t x_int __attribute__((vector_size(sizeof(vec)))); // its bits

INLINE float x_max_lane(vec x) { return v_max_lane(v_max(x_half(x, 0), x_half(x, HALVES - 1))); }
// Eight sums of float64, and the lanes of x added to them.
INLINE doubles x_add_doubles(doubles sums, vec x) {
    for (int h = 0; h < HALVES; h++) sums = d_add(sums, x_half(x, h));
    return sums;
}

#endif
