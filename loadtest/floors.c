// What one core can do at most: the floors that loadtest/kernel_floors.py holds kernels against. Sums are returned so that no loop is dropped.
#include "quantized.h"

#ifdef WIDE_REGISTERS
enum { CHAINS = 12, REGISTER = 64 };
#else
enum { CHAINS = 6, REGISTER = 32 }; // chains of two registers each
#endif

// Reads `bytes` (a multiple of 256) once.
int64_t floor_read(const uint8_t *p, int64_t bytes) {
    typedef int64_t vector_t __attribute__((vector_size(REGISTER)));
    vector_t a = {0}, b = {0}, c = {0}, d = {0};
    for (int64_t i = 0; i < bytes; i += 4 * REGISTER) {
        const vector_t *at = (const vector_t *)(p + i);
        a += at[0];
        b += at[1];
        c += at[2];
        d += at[3];
    }
    a = (a + b) + (c + d);
    int64_t total = 0;
    for (int i = 0; i < REGISTER / 8; i++) total += a[i];
    return total;
}

// Multiply-adds of floats in registers: 16 * CHAINS for each turn.
float floor_f32(int64_t turns) {
    v16f sums[CHAINS];
    for (int i = 0; i < CHAINS; i++) sums[i] = w_set((float)i);
    const v16f x = w_set(0.999f), y = w_set(0.001f);
    for (int64_t t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = w_fma(sums[i], x, y);
    float out[16], total = 0.0f;
    for (int i = 0; i < CHAINS; i++) {
        w_store(out, sums[i]);
        total += out[0] + out[15];
    }
    return total;
}

// Multiply-adds of codes of 8 and of 16 bits, for each turn 64, resp. 32, times CHAINS. -1: this machine has no instruction for them.
#if defined(WIDE_REGISTERS)

int64_t floor_int8(int64_t turns) {
    __m512i sums[CHAINS], x = _mm512_set1_epi8(3);
    for (int i = 0; i < CHAINS; i++) sums[i] = _mm512_set1_epi32(i);
    for (int64_t t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = _mm512_dpbusd_epi32(sums[i], x, x);
    int64_t total = 0;
    for (int i = 0; i < CHAINS; i++) total += _mm512_reduce_add_epi32(sums[i]);
    return total;
}

int64_t floor_int16(int64_t turns) {
    __m512i sums[CHAINS], x = _mm512_set1_epi16(3);
    for (int i = 0; i < CHAINS; i++) sums[i] = _mm512_set1_epi32(i);
    for (int64_t t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++) sums[i] = _mm512_dpwssd_epi32(sums[i], x, x);
    int64_t total = 0;
    for (int i = 0; i < CHAINS; i++) total += _mm512_reduce_add_epi32(sums[i]);
    return total;
}

#elif defined(__AVX2__)

// As the products do them. The empty assembly makes x new each time: a product that stays the same is taken out of the loop.
int64_t floor_int8(int64_t turns) {
    __m256i sums[2 * CHAINS], x = _mm256_set1_epi8(3);
#pragma GCC unroll 12
    for (int i = 0; i < 2 * CHAINS; i++) sums[i] = _mm256_set1_epi16((short)i);
    for (int64_t t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < 2 * CHAINS; i++) {
            __asm__("" : "+x"(x));
            sums[i] = add_q4(sums[i], x, x);
        }
    int64_t total = 0;
#pragma GCC unroll 12
    for (int i = 0; i < 2 * CHAINS; i++) total += _mm256_extract_epi16(sums[i], 0);
    return total;
}

int64_t floor_int16(int64_t turns) {
    __m256i sums[2 * CHAINS], x = _mm256_set1_epi16(3);
#pragma GCC unroll 12
    for (int i = 0; i < 2 * CHAINS; i++) sums[i] = _mm256_set1_epi32(i);
    for (int64_t t = 0; t < turns; t++)
#pragma GCC unroll 12
        for (int i = 0; i < 2 * CHAINS; i++) {
            __asm__("" : "+x"(x));
            sums[i] = add_q8(sums[i], x, x);
        }
    int64_t total = 0;
#pragma GCC unroll 12
    for (int i = 0; i < 2 * CHAINS; i++) total += _mm256_extract_epi32(sums[i], 0);
    return total;
}

#else

int64_t floor_int8(int64_t turns) { return turns ? -1 : 0; }
int64_t floor_int16(int64_t turns) { return turns ? -1 : 0; }

#endif

int32_t floor_chains(void) { return CHAINS; }
