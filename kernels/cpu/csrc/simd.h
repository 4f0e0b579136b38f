// Eight floats at a time: AVX2 or NEON where the machine has them, GCC's portable vectors elsewhere (old x86-64).
//
// Nothing here depends on how wide a loop is unrolled around it, so that a row's result never depends on its neighbours. Products and
// sums are fused only where `v_fma` says so (the build forbids the compiler to fuse by itself).
#ifndef OCTAVO_SIMD_H
#define OCTAVO_SIMD_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

enum { LANES = 8 };

typedef float v8f __attribute__((vector_size(32)));
typedef int32_t v8i __attribute__((vector_size(32)));
typedef float v8f_unaligned __attribute__((vector_size(32), aligned(4), may_alias));

// The lanes in another order, by a name that each compiler knows: GCC has clang's since version 12 only.
#ifdef __clang__
#define V_SHUFFLE(x, ...) __builtin_shufflevector(x, x, __VA_ARGS__)
#else
#define V_SHUFFLE(x, ...) __builtin_shuffle(x, (v8i){__VA_ARGS__})
#endif

INLINE v8f v_load(const float *p) { return *(const v8f_unaligned *)p; }
INLINE void v_store(float *p, v8f x) { *(v8f_unaligned *)p = x; }
INLINE v8f v_set(float x) { return (v8f){x, x, x, x, x, x, x, x}; }

// The first n of eight floats; the others are zero, resp. left alone.
INLINE v8f v_load_part(const float *p, int64_t n) {
    float buffer[LANES] = {0};
    memcpy(buffer, p, (size_t)n * sizeof(float));
    return v_load(buffer);
}
INLINE void v_store_part(float *p, v8f x, int64_t n) {
    float buffer[LANES];
    v_store(buffer, x);
    memcpy(p, buffer, (size_t)n * sizeof(float));
}

#ifdef __AVX2__

#include <immintrin.h>

#ifdef __FMA__
INLINE v8f v_fma(v8f a, v8f b, v8f c) { return (v8f)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c); }
#else
INLINE v8f v_fma(v8f a, v8f b, v8f c) { return a * b + c; }
#endif
// Of an operand that is not a number, the second is returned: keep the data there, so that a NaN stays visible.
INLINE v8f v_max(v8f a, v8f b) { return (v8f)_mm256_max_ps((__m256)a, (__m256)b); }
INLINE v8f v_min(v8f a, v8f b) { return (v8f)_mm256_min_ps((__m256)a, (__m256)b); }
INLINE v8i v_round(v8f x) { return (v8i)_mm256_cvtps_epi32((__m256)x); } // to nearest, ties to even
INLINE v8f v_rint(v8f x) { return (v8f)_mm256_round_ps((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
INLINE v8f v_float(v8i x) { return (v8f)_mm256_cvtepi32_ps((__m256i)x); }
INLINE uint32_t v_bits(v8i mask) { return (uint32_t)_mm256_movemask_ps((__m256)mask); } // of a comparison, one a lane

// The sums of the lanes of four vectors, each as ((x0+x1)+(x2+x3)) + ((x4+x5)+(x6+x7)).
INLINE void v_sum4(v8f a, v8f b, v8f c, v8f d, float *out) {
    __m256 ab = _mm256_hadd_ps((__m256)a, (__m256)b);
    __m256 cd = _mm256_hadd_ps((__m256)c, (__m256)d);
    __m256 abcd = _mm256_hadd_ps(ab, cd);
    _mm_storeu_ps(out, _mm_add_ps(_mm256_castps256_ps128(abcd), _mm256_extractf128_ps(abcd, 1)));
}
INLINE float v_max_lane(v8f x) {
    __m128 best = _mm_max_ps(_mm256_castps256_ps128((__m256)x), _mm256_extractf128_ps((__m256)x, 1));
    best = _mm_max_ps(best, _mm_movehl_ps(best, best));
    return _mm_cvtss_f32(_mm_max_ss(best, _mm_shuffle_ps(best, best, 1)));
}
INLINE void v_prefetch(const void *p) { _mm_prefetch(p, _MM_HINT_T0); }

#else

#ifdef __aarch64__

#include <arm_neon.h>

typedef union {
    v8f whole;
    v8i integers;
    float32x4_t half[2];
    int32x4_t integer_half[2];
} halves_t;

INLINE v8f v_fma(v8f a, v8f b, v8f c) {
    const halves_t x = {a}, y = {b};
    halves_t out = {c};
    for (int i = 0; i < 2; i++) out.half[i] = vfmaq_f32(out.half[i], x.half[i], y.half[i]);
    return out.whole;
}
INLINE v8i v_round(v8f x) {
    halves_t out = {x};
    for (int i = 0; i < 2; i++) out.integer_half[i] = vcvtnq_s32_f32(out.half[i]);
    return out.integers;
}

#else

INLINE v8f v_fma(v8f a, v8f b, v8f c) { return a * b + c; }
INLINE v8i v_round(v8f x) {
    v8i out;
    for (int i = 0; i < LANES; i++) out[i] = (int32_t)__builtin_rintf(x[i]);
    return out;
}

#endif

INLINE v8f v_rint(v8f x) {
    for (int i = 0; i < LANES; i++) x[i] = __builtin_rintf(x[i]);
    return x;
}
INLINE uint32_t v_bits(v8i mask) {
    uint32_t bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (uint32_t)(mask[i] & 1) << i;
    return bits;
}
INLINE v8f v_select(v8i mask, v8f a, v8f b) { return (v8f)((mask & (v8i)a) | (~mask & (v8i)b)); }
INLINE v8f v_max(v8f a, v8f b) { return v_select(a > b, a, b); }
INLINE v8f v_min(v8f a, v8f b) { return v_select(a < b, a, b); }
INLINE v8f v_float(v8i x) { return __builtin_convertvector(x, v8f); }

INLINE void v_sum4(v8f a, v8f b, v8f c, v8f d, float *out) {
    const v8f all[4] = {a, b, c, d};
    for (int i = 0; i < 4; i++) {
        const v8f x = all[i];
        out[i] = ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7]));
    }
}
INLINE float v_max_lane(v8f x) {
    float best = x[0];
    for (int i = 1; i < LANES; i++) best = x[i] > best ? x[i] : best;
    return best;
}
INLINE void v_prefetch(const void *p) { __builtin_prefetch(p); }

#endif

INLINE float v_sum(v8f x) {
    float sums[4];
    v_sum4(x, x, x, x, sums);
    return sums[0];
}
INLINE v8f v_abs(v8f x) { return (v8f)((v8i)x & 0x7fffffff); }

// The larger of two magnitudes (results of v_abs) by their bits, as which they have the same order: what is no number is the largest.
INLINE v8f v_max_magnitude(v8f a, v8f b) {
#ifdef __AVX2__
    return (v8f)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    return v_select((v8i)a > (v8i)b, a, b);
#endif
}
INLINE float v_max_magnitude_lane(v8f x) {
#ifdef __AVX2__
    __m128i best = _mm_max_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    best = _mm_max_epi32(best, _mm_shuffle_epi32(best, 0x4e));
    return _mm_cvtss_f32((__m128)_mm_max_epi32(best, _mm_shuffle_epi32(best, 0xb1)));
#else
    v8f best = x;
    for (int i = 1; i < LANES; i++) best = v_max_magnitude(best, v_set(x[i]));
    return best[0];
#endif
}

// out = x * factor
INLINE void v_scale(float *out, const float *x, float factor, int64_t n) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(out + i, v_load(x + i) * factor);
    for (; i < n; i++) out[i] = x[i] * factor;
}

// The two steps of an exponential at any width, whose operations are given: r = x - n * ln(2), and e**r within 2 ulp for such a rest
// (Cephes' polynomial).
#define EXP_REST(fma, set, n, x) fma(n, set(2.12194440e-4f), fma(n, set(-0.693359375f), x))
#define EXP_OF_REST(fma, set, r)                                                                                                       \
    (fma(fma(fma(fma(fma(fma(set(1.9875691500e-4f), r, set(1.3981999507e-3f)), r, set(8.3334519073e-3f)), r, set(4.1665795894e-2f)), \
                 r, set(1.6666665459e-1f)),                                                                                            \
             r, set(5.0000001201e-1f)),                                                                                                \
         (r) * (r), r) +                                                                                                               \
     set(1.0f))

// e**x; below -87 it stays at 1e-38 instead of reaching zero, above 88 at 1.7e38.
INLINE v8f v_exp(v8f x) {
    x = v_max(v_set(-87.0f), v_min(v_set(88.0f), x));
    const v8i n = v_round(x * 1.44269504088896341f);
    const v8f r = EXP_REST(v_fma, v_set, v_float(n), x);
    return EXP_OF_REST(v_fma, v_set, r) * (v8f)((n + 127) << 23);
}

#endif
