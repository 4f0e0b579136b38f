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
INLINE void x_sum4(vec a, vec b, vec c, vec d, float *out) { v_sum4(a, b, c, d, out); }

#endif

#endif
