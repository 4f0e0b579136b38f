// float16, bfloat16 and int8 to float32, and float16 and bfloat16 back, rounding to nearest even as PyTorch does.
#ifndef OCTAVO_HALF_H
#define OCTAVO_HALF_H

#include "simd.h"

INLINE float half_to_float(uint16_t h) {
#ifdef __F16C__
    return _cvtsh_ss(h);
#else
    // The exponent is rebased by a multiplication, which also brings subnormals right.
    const uint32_t magnitude = (uint32_t)(h & 0x7fff) << 13;
    union { uint32_t bits; float value; } out = {magnitude};
    if ((h & 0x7c00) == 0x7c00) out.bits |= 0x7f800000;
    else out.value *= 0x1p112f;
    out.bits |= (uint32_t)(h & 0x8000) << 16;
    return out.value;
#endif
}

INLINE uint16_t float_to_half(float x) {
#ifdef __F16C__
    return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
#else
    union { float value; uint32_t bits; } in = {x};
    const uint16_t sign = (uint16_t)((in.bits >> 16) & 0x8000);
    uint32_t bits = in.bits & 0x7fffffff;
    if (bits > 0x7f800000) return sign | 0x7e00; // not a number
    if (bits >= 0x477ff000) return sign | 0x7c00; // rounds to infinity
    if (bits < 0x38800000) { // subnormal: adding 0.5 lets the unit round at the right bit
        union { uint32_t bits; float value; } tiny = {bits};
        tiny.value += 0.5f;
        return sign | (uint16_t)(tiny.bits - 0x3f000000);
    }
    bits += 0xfff + ((bits >> 13) & 1);
    return sign | (uint16_t)((bits - 0x38000000) >> 13);
#endif
}

INLINE float bfloat_to_float(uint16_t h) {
    union { uint32_t bits; float value; } out = {(uint32_t)h << 16};
    return out.value;
}

INLINE uint16_t float_to_bfloat(float x) {
    union { float value; uint32_t bits; } in = {x};
    if ((in.bits & 0x7fffffff) > 0x7f800000) return 0x7fc0;
    return (uint16_t)((in.bits + 0x7fff + ((in.bits >> 16) & 1)) >> 16);
}

INLINE v8f v_load_half(const uint16_t *p) {
#ifdef __F16C__
    return (v8f)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
#elif defined(__aarch64__)
    const float16x8_t halves = vreinterpretq_f16_u16(vld1q_u16(p));
    return (halves_t){.half = {vcvt_f32_f16(vget_low_f16(halves)), vcvt_high_f32_f16(halves)}}.whole;
#else
    v8f out;
    for (int i = 0; i < LANES; i++) out[i] = half_to_float(p[i]);
    return out;
#endif
}

INLINE void v_store_half(uint16_t *p, v8f x) {
#ifdef __F16C__
    _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT));
#else
    for (int i = 0; i < LANES; i++) p[i] = float_to_half(x[i]);
#endif
}

INLINE v8f v_load_bfloat(const uint16_t *p) {
    v8f out;
#ifdef __AVX2__
    out = (v8f)_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16);
#else
    for (int i = 0; i < LANES; i++) out[i] = bfloat_to_float(p[i]);
#endif
    return out;
}

INLINE v8f v_load_int8(const int8_t *p) {
#ifdef __AVX2__
    return v_float((v8i)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p)));
#else
    v8f out;
    for (int i = 0; i < LANES; i++) out[i] = (float)p[i];
    return out;
#endif
}

#endif
