// Sixteen floats at a time, the output features of a tile: one register with AVX-512, two of eight without.
#ifndef OCTAVO_SIMD16_H
#define OCTAVO_SIMD16_H

#include "half.h"

#if defined(__AVX512VNNI__) && defined(__AVX512VL__) && defined(__AVX512BW__)
#define WIDE_REGISTERS 1

typedef __m512 v16f;
typedef __m512i v16i;

INLINE v16f w_set(float x) { return _mm512_set1_ps(x); }
INLINE v16f w_load(const float *p) { return _mm512_loadu_ps(p); }
INLINE v16f w_load_half(const uint16_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
INLINE v16f w_load_bfloat(const uint16_t *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
INLINE void w_store(float *p, v16f x) { _mm512_storeu_ps(p, x); }
INLINE v16f w_mul(v16f a, v16f b) { return _mm512_mul_ps(a, b); }
INLINE v16f w_fma(v16f a, v16f b, v16f c) { return _mm512_fmadd_ps(a, b, c); }
INLINE v16f w_float(v16i x) { return _mm512_cvtepi32_ps(x); }
INLINE v16i w_shift_and_add(v16i a, const int bits, v16i b) { return _mm512_add_epi32(_mm512_slli_epi32(a, bits), b); }

enum { SHARED_ROWS = 8 }; // of activations, that share each load of a tile's weights: at most

#else

typedef struct {
    v8f half[2];
} v16f;
typedef struct {
    v8i half[2];
} v16i;

INLINE v16f w_set(float x) { return (v16f){{v_set(x), v_set(x)}}; }
INLINE v16f w_load(const float *p) { return (v16f){{v_load(p), v_load(p + LANES)}}; }
INLINE v16f w_load_half(const uint16_t *p) { return (v16f){{v_load_half(p), v_load_half(p + LANES)}}; }
INLINE v16f w_load_bfloat(const uint16_t *p) { return (v16f){{v_load_bfloat(p), v_load_bfloat(p + LANES)}}; }
INLINE void w_store(float *p, v16f x) {
    v_store(p, x.half[0]);
    v_store(p + LANES, x.half[1]);
}
INLINE v16f w_mul(v16f a, v16f b) { return (v16f){{a.half[0] * b.half[0], a.half[1] * b.half[1]}}; }
INLINE v16f w_fma(v16f a, v16f b, v16f c) {
    return (v16f){{v_fma(a.half[0], b.half[0], c.half[0]), v_fma(a.half[1], b.half[1], c.half[1])}};
}
INLINE v16f w_float(v16i x) { return (v16f){{v_float(x.half[0]), v_float(x.half[1])}}; }
INLINE v16i w_shift_and_add(v16i a, const int bits, v16i b) {
    return (v16i){{(a.half[0] << bits) + b.half[0], (a.half[1] << bits) + b.half[1]}};
}

#ifdef __aarch64__
enum { SHARED_ROWS = 4 }; // 16 sums and 8 weights of four lanes, of 32 registers
#else
enum { SHARED_ROWS = 6 }; // 12 sums, 2 weights and 2 products fill the 16 registers
#endif

#endif

// Rows are taken in runs as even as they come, none longer than `most`: 8 as 4 and 4, not as 6 and 2.
INLINE int64_t rows_in_run(int64_t rows_left, int64_t most) {
    const int64_t runs = (rows_left + most - 1) / most;
    return (rows_left + runs - 1) / runs;
}

// Writes the first `columns` of sixteen sums, with the bias added where there is one.
INLINE void w_store_columns(float *out, v16f sums, const float *bias, int32_t columns) {
    if (!bias && columns == 16) {
        w_store(out, sums);
        return;
    }
    float values[16];
    w_store(values, sums);
    for (int32_t c = 0; c < columns; c++) out[c] = bias ? values[c] + bias[c] : values[c];
}

#endif
