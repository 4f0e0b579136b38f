// Products of quantised weights and quantised activations: integers inside a group, floats across groups in a fixed order.
//
// A tile is 16 output features; of each group of input features it holds, one behind the other:
//   Q4  group_size / 8 vectors of 64 bytes. Byte 4 c + i of vector j is the code of output c and input 4 j + i in its low half, and of
//       input 4 j + i + group_size / 2 in its high half.
//   Q8  group_size / 2 vectors of 32 bytes. Byte 2 c + i of vector j is the code of output c and input 2 j + i.
//   then 16 scales, and 16 minimums if there are any, as float16 or float32.
// An output is the sum over groups, in order, of scale * activation_scale * (integer product) + minimum * (activation_scale * code sum),
// with 16-bit codes in a row's groups that stand out: the bits do not depend on how many rows share a tile's loads.
#ifndef OCTAVO_QUANTIZED_H
#define OCTAVO_QUANTIZED_H

#include "octavo.h"
#include "simd16.h"

INLINE int64_t code_bytes_of_group(const int form, const int group_size) {
    return form == WEIGHT_Q4 ? TILE * group_size / 2 : TILE * group_size;
}

// ---- Integer products over one group: dots[r] = the codes of 16 outputs times the codes of row r, exact -------------------------------

// Q4: unsigned codes below 16 times signed codes of 8 bits. Where pairs of products are added in 16 bits, a pair is at most 3840 and eight
// pairs fit, so nothing saturates. Q8: signed codes of 8 bits, widened, times signed codes of 16 bits: a group's sum is below 2**28.

#if defined(WIDE_REGISTERS)

INLINE __m512i broadcast4(const void *p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return _mm512_set1_epi32(bytes);
}

INLINE void dots_q4(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
    const __m512i low = _mm512_set1_epi8(15);
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) dots[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < group_size / 8; j++) {
        const __m512i pair = _mm512_loadu_si512(codes + 64 * j);
        const __m512i w0 = _mm512_and_si512(pair, low), w1 = _mm512_and_si512(_mm512_srli_epi16(pair, 4), low);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            dots[r] = _mm512_dpbusd_epi32(dots[r], w0, broadcast4(x + r * row_bytes + 4 * j));
            dots[r] = _mm512_dpbusd_epi32(dots[r], w1, broadcast4(x + r * row_bytes + 4 * j + group_size / 2));
        }
    }
}

INLINE void dots_q8(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) dots[r] = _mm512_setzero_si512();
#pragma GCC unroll 4
    for (int j = 0; j < group_size / 2; j++) {
        const __m512i w = _mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i *)(codes + 32 * j)));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) dots[r] = _mm512_dpwssd_epi32(dots[r], w, broadcast4(x + r * row_bytes + 4 * j));
    }
}

#elif defined(__AVX2__)

INLINE __m256i broadcast4(const void *p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

// `sums` with the products of codes added. The empty assembly keeps each sum where it stands: gcc would gather the additions behind all of
// a group's products, which then wait in memory.
#ifdef __AVXVNNI__
INLINE __m256i add_q4(__m256i sums, __m256i w, __m256i input) { return _mm256_dpbusd_avx_epi32(sums, w, input); }
INLINE __m256i add_q8(__m256i sums, __m256i w, __m256i input) { return _mm256_dpwssd_avx_epi32(sums, w, input); }
INLINE v8i total_q4(__m256i sums) { return (v8i)sums; }
#else
INLINE __m256i add_q4(__m256i sums, __m256i w, __m256i input) {
    sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, input));
    __asm__("" : "+x"(sums));
    return sums;
}
INLINE __m256i add_q8(__m256i sums, __m256i w, __m256i input) {
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(w, input));
    __asm__("" : "+x"(sums));
    return sums;
}
INLINE v8i total_q4(__m256i sums) { return (v8i)_mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
#endif

INLINE void dots_q4(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
    const __m256i low = _mm256_set1_epi8(15);
    __m256i sums[SHARED_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (int j = 0; j < group_size / 8; j++) {
#pragma GCC unroll 2
        for (int part = 0; part < 2; part++) {
            __m256i w0 = _mm256_loadu_si256((const __m256i *)(codes + 64 * j));
            __m256i w1 = _mm256_loadu_si256((const __m256i *)(codes + 64 * j + 32));
            w0 = _mm256_and_si256(part ? _mm256_srli_epi16(w0, 4) : w0, low);
            w1 = _mm256_and_si256(part ? _mm256_srli_epi16(w1, 4) : w1, low);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const __m256i input = broadcast4(x + r * row_bytes + 4 * j + part * group_size / 2);
                sums[r][0] = add_q4(sums[r][0], w0, input);
                sums[r][1] = add_q4(sums[r][1], w1, input);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) dots[r] = (v16i){{total_q4(sums[r][0]), total_q4(sums[r][1])}};
}

INLINE void dots_q8(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
    __m256i sums[SHARED_ROWS][2];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (int j = 0; j < group_size / 2; j++) {
        const __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes + 32 * j)));
        const __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes + 32 * j + 16)));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m256i input = broadcast4(x + r * row_bytes + 4 * j);
            sums[r][0] = add_q8(sums[r][0], w0, input);
            sums[r][1] = add_q8(sums[r][1], w1, input);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) dots[r] = (v16i){{(v8i)sums[r][0], (v8i)sums[r][1]}};
}

#elif defined(__ARM_FEATURE_DOTPROD)

INLINE int8x16_t broadcast4(const void *p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
}

// Four outputs of four inputs each are a register: `vdotq` adds each four products to the output's sum.
INLINE void dots_q4(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
    const uint8x16_t low = vdupq_n_u8(15);
    int32x4_t sums[SHARED_ROWS][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) sums[r][v] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int j = 0; j < group_size / 8; j++) {
        int8x16_t w0[4], w1[4];
        for (int v = 0; v < 4; v++) {
            const uint8x16_t pair = vld1q_u8(codes + 64 * j + 16 * v);
            w0[v] = vreinterpretq_s8_u8(vandq_u8(pair, low));
            w1[v] = vreinterpretq_s8_u8(vshrq_n_u8(pair, 4));
        }
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const int8x16_t low_input = broadcast4(x + r * row_bytes + 4 * j), high_input = broadcast4(x + r * row_bytes + 4 * j + group_size / 2);
            for (int v = 0; v < 4; v++) sums[r][v] = vdotq_s32(vdotq_s32(sums[r][v], w0[v], low_input), w1[v], high_input);
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) memcpy(&dots[r], sums[r], sizeof sums[r]);
}

// Two inputs of each output side by side: products of 16 bits, added in pairs.
INLINE void dots_q8(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
    int32x4_t sums[SHARED_ROWS][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
        for (int v = 0; v < 4; v++) sums[r][v] = vdupq_n_s32(0);
#pragma GCC unroll 4
    for (int j = 0; j < group_size / 2; j++) {
        const int8x16_t bytes[2] = {vld1q_s8((const int8_t *)codes + 32 * j), vld1q_s8((const int8_t *)codes + 32 * j + 16)};
        const int16x8_t w[4] = {vmovl_s8(vget_low_s8(bytes[0])), vmovl_high_s8(bytes[0]), vmovl_s8(vget_low_s8(bytes[1])), vmovl_high_s8(bytes[1])};
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const int16x8_t input = vreinterpretq_s16_s8(broadcast4(x + r * row_bytes + 4 * j));
            for (int v = 0; v < 4; v++) {
                const int32x4_t products = vmull_s16(vget_low_s16(w[v]), vget_low_s16(input));
                sums[r][v] = vaddq_s32(sums[r][v], vpaddq_s32(products, vmull_high_s16(w[v], input)));
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) memcpy(&dots[r], sums[r], sizeof sums[r]);
}

#else

INLINE void dots_q4(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
    for (int r = 0; r < rows; r++) {
        const int8_t *input = (const int8_t *)(x + r * row_bytes);
        int32_t sums[TILE] = {0};
        for (int j = 0; j < group_size / 8; j++)
            for (int c = 0; c < TILE; c++)
                for (int i = 0; i < 4; i++) {
                    const uint8_t pair = codes[64 * j + 4 * c + i];
                    sums[c] += (pair & 15) * input[4 * j + i] + (pair >> 4) * input[4 * j + i + group_size / 2];
                }
        memcpy(&dots[r], sums, sizeof sums);
    }
}

INLINE void dots_q8(const int rows, const int group_size, const uint8_t *codes, const uint8_t *x, int64_t row_bytes, v16i *dots) {
    for (int r = 0; r < rows; r++) {
        const int16_t *input = (const int16_t *)(x + r * row_bytes);
        int32_t sums[TILE] = {0};
        for (int j = 0; j < group_size / 2; j++)
            for (int c = 0; c < TILE; c++)
                for (int i = 0; i < 2; i++) sums[c] += (int8_t)codes[32 * j + 2 * c + i] * input[2 * j + i];
        memcpy(&dots[r], sums, sizeof sums);
    }
}

#endif

enum { STREAM_AHEAD = 2048 }; // bytes

// ---- One tile by a few rows --------------------------------------------------------------------------------------------------------

INLINE v16f load_scales(const uint8_t *p, int32_t scale_bytes) {
    return scale_bytes == 2 ? w_load_half((const uint16_t *)p) : w_load((const float *)p);
}

// A few rows of activations at one group: each row's are `row_bytes` behind those of the row before.
typedef struct {
    int64_t row_bytes;
    const uint8_t *codes;
    const uint8_t *pairs; // of floats: the scale, and the scaled sum of codes
} inputs_t;

INLINE v16f input_float(const inputs_t *inputs, int row, int i) {
    float value;
    memcpy(&value, inputs->pairs + row * inputs->row_bytes + i * sizeof value, sizeof value);
    return w_set(value);
}

// The groups from g on, up to 32 of them, that stand out in any of the rows, as bits.
INLINE uint32_t outlier_bits(const int rows, const uint8_t *outliers, int64_t row_bytes, int64_t g) {
    uint32_t bits = 0;
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) bits |= ((const uint32_t *)(outliers + r * row_bytes))[g / 32];
    return bits >> g % 32;
}

INLINE int64_t next_outlier(const int rows, const uint8_t *outliers, int64_t row_bytes, int64_t g, int64_t groups) {
    while (g < groups) {
        const uint32_t bits = outlier_bits(rows, outliers, row_bytes, g);
        if (bits) return g + __builtin_ctz(bits);
        g = (g / 32 + 1) * 32;
    }
    return groups;
}

// In the rows in which a group stands out, dots[r] becomes the products of codes of 16 bits, whose low 8 bits are the second codes.
INLINE void add_remainders(const int rows, const int group_size, const uint8_t *group, const uint8_t *outliers, int64_t g,
                           const inputs_t *inputs, int64_t second_at, v16i *dots) {
    v16i in_memory[SHARED_ROWS]; // the dots of other groups stay in registers
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) in_memory[r] = dots[r];
    for (int r = 0; r < rows; r++)
        if (outlier_bits(1, outliers + r * inputs->row_bytes, 0, g) & 1) {
            v16i second;
            dots_q4(1, group_size, group, inputs->codes + r * inputs->row_bytes + second_at, 0, &second);
            in_memory[r] = w_shift_and_add(in_memory[r], 8, second);
        }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) dots[r] = in_memory[r];
}

// sums += one group's products, which are `dots`.
INLINE void scale_group(const int form, const int rows, const int group_size, const weight_t *weight, const uint8_t *group,
                        const inputs_t *inputs, const v16i *dots, v16f *sums) {
    const uint8_t *behind = group + code_bytes_of_group(form, group_size);
    const v16f scale = load_scales(behind, weight->scale_bytes);
    if (weight->has_mins) {
        const v16f minimum = load_scales(behind + TILE * weight->scale_bytes, weight->scale_bytes);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            sums[r] = w_fma(w_float(dots[r]), w_mul(scale, input_float(inputs, r, 0)), sums[r]);
            sums[r] = w_fma(minimum, input_float(inputs, r, 1), sums[r]);
        }
    } else {
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) sums[r] = w_fma(w_float(dots[r]), w_mul(scale, input_float(inputs, r, 0)), sums[r]);
    }
}

INLINE void product(const int form, const int rows, const int group_size, const weight_t *weight, const uint8_t *tile,
                    const codes_t *codes, int64_t row, float *out, const float *bias, int32_t columns) {
    const int code_bytes = form == WEIGHT_Q4 ? CODES_INT8 : CODES_INT16;
    const int64_t in = weight->in_features, groups = in / group_size;
    const uint8_t *first = codes->data + row * codes->row_bytes, *outliers = first + outlier_words_at(in, group_size);
    inputs_t inputs = {codes->row_bytes, first, first + in * code_bytes};
    v16f sums[SHARED_ROWS];
    v16i dots[SHARED_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sums[r] = w_set(0.0f);
    for (int64_t g = 0;; g++) {
        const int64_t end = form == WEIGHT_Q4 ? next_outlier(rows, outliers, codes->row_bytes, g, groups) : groups;
        for (; g < end; g++) {
            if (form == WEIGHT_Q4) dots_q4(rows, group_size, tile, inputs.codes, inputs.row_bytes, dots);
            else dots_q8(rows, group_size, tile, inputs.codes, inputs.row_bytes, dots);
            if (rows > 1) // one row reads so fast that the processor sees the pattern by itself
                for (int64_t at = 0; at < weight->group_bytes; at += 64) v_prefetch(tile + STREAM_AHEAD + at);
            scale_group(form, rows, group_size, weight, tile, &inputs, dots, sums);
            inputs.codes += group_size * code_bytes;
            inputs.pairs += 2 * sizeof(float);
            tile += weight->group_bytes;
        }
        if (g == groups) break;
        dots_q4(rows, group_size, tile, inputs.codes, inputs.row_bytes, dots);
        add_remainders(rows, group_size, tile, outliers, g, &inputs, remainders_at(in, group_size), dots);
        scale_group(WEIGHT_Q4, rows, group_size, weight, tile, &inputs, dots, sums);
        inputs.codes += group_size;
        inputs.pairs += 2 * sizeof(float);
        tile += weight->group_bytes;
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) w_store_columns(out + (row + r) * weight->out_features, sums[r], bias, columns);
}

// All rows meet one tile, a run of them at a time.
INLINE void rows_by_tile(const int form, const int group_size, const linear_args_t *args, int64_t rows, int64_t tile_index) {
    const weight_t *weight = args->weight;
    const int64_t groups = weight->in_features / group_size, column = tile_index * TILE;
    const uint8_t *tile = (const uint8_t *)weight->data + tile_index * groups * weight->group_bytes;
    const int32_t columns = weight->out_features - column < TILE ? (int32_t)(weight->out_features - column) : TILE;
    const float *bias = weight->bias ? weight->bias + column : NULL;
    float *out = args->out + column;
    for (int64_t r = 0, run; r < rows; r += run) {
        run = rows_in_run(rows - r, SHARED_ROWS);
        switch (run) {
        case 1: product(form, 1, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 2: product(form, 2, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 3: product(form, 3, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 4: product(form, 4, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 5: product(form, 5, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 6: product(form, 6, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
#ifdef WIDE_REGISTERS
        case 7: product(form, 7, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 8: product(form, 8, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
#endif
        }
    }
}

INLINE void quantized_tiles(const int form, const step_t *step, const linear_args_t *args, span_t tiles) {
    const int64_t rows = num_rows(step, args->rows);
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        if (args->weight->group_size == 32) rows_by_tile(form, 32, args, rows, tile);
        else rows_by_tile(form, 16, args, rows, tile);
    }
}

#endif
