// Counter-based random numbers, bit for bit those of kernels/random.py (Philox4x32-10; Salmon et al., 2011, section 3.3).
#ifndef OCTAVO_PHILOX_H
#define OCTAVO_PHILOX_H

#include <stdint.h>

// One number in [0, 1) with 53 random bits.
static inline double philox_uniform(uint64_t seed, uint64_t sample_index, uint64_t position) {
    uint32_t c0 = (uint32_t)position, c1 = (uint32_t)(position >> 32), c2 = (uint32_t)sample_index, c3 = 0;
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t product0 = (uint64_t)0xD2511F53u * c0, product1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return ((double)(c0 >> 5) * 67108864.0 + (double)(c1 >> 6)) * (1.0 / 9007199254740992.0);
}

#endif
