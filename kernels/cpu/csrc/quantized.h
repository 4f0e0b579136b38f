// Products of quantised weights and quantised activations: integers inside a group, floats across groups in a fixed order.
//
// A tile is 16 output features; of each group of input features it holds, one behind the other:
//   Q4  group_size / 8 vectors of 64 bytes. Byte 4 c + i of vector j is the code of output c and input 4 j + i in its low half, and of
//       input 4 j + i + group_size / 2 in its high half.
//   Q8  group_size / 2 vectors of 32 bytes. Byte 2 c + i of vector j is the code of output c and input 2 j + i.
//   then 16 scales, and 16 minimums if there are any, as float16 or float32.
// An output is the sum over groups, in order, of scale * activation_scale * (integer product) + minimum * (activation_scale * code sum):
// the bits do not depend on how many rows share a tile's loads.
#ifndef OCTAVO_QUANTIZED_H
#define OCTAVO_QUANTIZED_H

#include "half.h"
#include "octavo.h"

INLINE int64_t code_bytes_of_group(const int form, const int group_size) {
    return form == WEIGHT_Q4 ? TILE * group_size / 2 : TILE * group_size;
}

// ---- Integer products: dots[r][h] = codes of outputs 8 h .. 8 h + 7 times codes of row r, over one group --------------------------------

#ifdef __AVX2__

INLINE __m256i broadcast4(const void *p) {
    int32_t bytes;
    memcpy(&bytes, p, sizeof bytes);
    return _mm256_set1_epi32(bytes);
}

// Unsigned codes below 16 times signed codes of 8 bits: a pair of products is at most 3810, eight pairs fit 16 bits, so nothing
// saturates.
INLINE void dots_q4(const int rows, const int group_size, const uint8_t *codes, const uint8_t *const *x, v8i dots[][2]) {
    const int vectors = group_size / 8;
    const __m256i low = _mm256_set1_epi8(15);
    __m256i sums[8][2];
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int j = 0; j < vectors; j++) {
        for (int part = 0; part < 2; part++) {
            __m256i w[2];
            for (int h = 0; h < 2; h++) {
                w[h] = _mm256_loadu_si256((const __m256i *)(codes + 64 * j + 32 * h));
                if (part) w[h] = _mm256_srli_epi16(w[h], 4);
                w[h] = _mm256_and_si256(w[h], low);
            }
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const __m256i input = broadcast4(x[r] + 4 * j + part * group_size / 2);
                for (int h = 0; h < 2; h++) {
#ifdef __AVX512VNNI__
                    sums[r][h] = _mm256_dpbusd_epi32(sums[r][h], w[h], input);
#else
                    sums[r][h] = _mm256_add_epi16(sums[r][h], _mm256_maddubs_epi16(w[h], input));
#endif
                }
            }
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) {
#ifdef __AVX512VNNI__
            dots[r][h] = (v8i)sums[r][h];
#else
            dots[r][h] = (v8i)_mm256_madd_epi16(sums[r][h], _mm256_set1_epi16(1));
#endif
        }
}

// Signed codes of 8 bits, widened, times signed codes of 16 bits: a group's sum is below 2**28.
INLINE void dots_q8(const int rows, const int group_size, const uint8_t *codes, const uint8_t *const *x, v8i dots[][2]) {
    __m256i sums[8][2];
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = _mm256_setzero_si256();
    for (int j = 0; j < group_size / 2; j++) {
        const __m256i w0 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes + 32 * j)));
        const __m256i w1 = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(codes + 32 * j + 16)));
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            const __m256i input = broadcast4(x[r] + 4 * j);
#ifdef __AVX512VNNI__
            sums[r][0] = _mm256_dpwssd_epi32(sums[r][0], w0, input);
            sums[r][1] = _mm256_dpwssd_epi32(sums[r][1], w1, input);
#else
            sums[r][0] = _mm256_add_epi32(sums[r][0], _mm256_madd_epi16(w0, input));
            sums[r][1] = _mm256_add_epi32(sums[r][1], _mm256_madd_epi16(w1, input));
#endif
        }
    }
    for (int r = 0; r < rows; r++)
        for (int h = 0; h < 2; h++) dots[r][h] = (v8i)sums[r][h];
}

#else

INLINE void dots_q4(const int rows, const int group_size, const uint8_t *codes, const uint8_t *const *x, v8i dots[][2]) {
    for (int r = 0; r < rows; r++) {
        const int8_t *input = (const int8_t *)x[r];
        int32_t sums[TILE] = {0};
        for (int j = 0; j < group_size / 8; j++)
            for (int c = 0; c < TILE; c++)
                for (int i = 0; i < 4; i++) {
                    const uint8_t pair = codes[64 * j + 4 * c + i];
                    sums[c] += (pair & 15) * input[4 * j + i] + (pair >> 4) * input[4 * j + i + group_size / 2];
                }
        memcpy(dots[r], sums, sizeof sums);
    }
}

INLINE void dots_q8(const int rows, const int group_size, const uint8_t *codes, const uint8_t *const *x, v8i dots[][2]) {
    for (int r = 0; r < rows; r++) {
        const int16_t *input = (const int16_t *)x[r];
        int32_t sums[TILE] = {0};
        for (int j = 0; j < group_size / 2; j++)
            for (int c = 0; c < TILE; c++)
                for (int i = 0; i < 2; i++) sums[c] += (int8_t)codes[32 * j + 2 * c + i] * input[2 * j + i];
        memcpy(dots[r], sums, sizeof sums);
    }
}

#endif

// ---- One tile by a few rows --------------------------------------------------------------------------------------------------------

INLINE v8f load_scales(const uint8_t *p, int32_t scale_bytes, int half) {
    return scale_bytes == 2 ? v_load_half((const uint16_t *)p + half * LANES) : v_load((const float *)p + half * LANES);
}

INLINE void product(const int form, const int rows, const int group_size, const weight_t *weight, const uint8_t *tile,
                    const codes_t *codes, int64_t row, float *out, const float *bias, int32_t columns) {
    const int code_bytes = form == WEIGHT_Q4 ? CODES_INT8 : CODES_INT16;
    const int64_t groups = weight->in_features / group_size;
    const uint8_t *x[8];
    const float *scales[8];
    v8f sums[8][2];
    for (int r = 0; r < rows; r++) {
        x[r] = codes->data + (row + r) * codes->row_bytes;
        scales[r] = (const float *)(x[r] + (int64_t)weight->in_features * code_bytes);
        sums[r][0] = sums[r][1] = v_set(0.0f);
    }
    for (int64_t g = 0; g < groups; g++) {
        v8i dots[8][2];
        if (form == WEIGHT_Q4) dots_q4(rows, group_size, tile, x, dots);
        else dots_q8(rows, group_size, tile, x, dots);
        const uint8_t *behind = tile + code_bytes_of_group(form, group_size);
        for (int h = 0; h < 2; h++) {
            const v8f scale = load_scales(behind, weight->scale_bytes, h);
            for (int r = 0; r < rows; r++) sums[r][h] = v_fma(v_float(dots[r][h]), scale * v_set(scales[r][0]), sums[r][h]);
        }
        if (weight->has_mins) {
            for (int h = 0; h < 2; h++) {
                const v8f minimum = load_scales(behind + TILE * weight->scale_bytes, weight->scale_bytes, h);
                for (int r = 0; r < rows; r++) sums[r][h] = v_fma(minimum, v_set(scales[r][1]), sums[r][h]);
            }
        }
        for (int r = 0; r < rows; r++) {
            x[r] += group_size * code_bytes;
            scales[r] += 2;
        }
        tile += weight->group_bytes;
    }
    for (int r = 0; r < rows; r++) {
        float values[TILE];
        v_store(values, sums[r][0]);
        v_store(values + LANES, sums[r][1]);
        float *to = out + (row + r) * weight->out_features;
        if (bias)
            for (int32_t c = 0; c < columns; c++) values[c] += bias[c];
        if (columns == TILE) memcpy(to, values, sizeof values);
        else memcpy(to, values, (size_t)columns * sizeof(float));
    }
}

// All rows meet one tile, `SHARED_ROWS` of them at a time.
enum { SHARED_ROWS = 6 };

INLINE void rows_by_tile(const int form, const int group_size, const linear_args_t *args, int64_t rows, int64_t tile_index) {
    const weight_t *weight = args->weight;
    const int64_t groups = weight->in_features / group_size, column = tile_index * TILE;
    const uint8_t *tile = (const uint8_t *)weight->data + tile_index * groups * weight->group_bytes;
    const int32_t columns = weight->out_features - column < TILE ? (int32_t)(weight->out_features - column) : TILE;
    const float *bias = weight->bias ? weight->bias + column : NULL;
    float *out = args->out + column;
    for (int64_t r = 0; r < rows; r += SHARED_ROWS) {
        switch (rows - r) {
        case 1: product(form, 1, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 2: product(form, 2, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 3: product(form, 3, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 4: product(form, 4, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        case 5: product(form, 5, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        default: product(form, 6, group_size, weight, tile, &args->codes, r, out, bias, columns); break;
        }
    }
}

enum { STATIC_ROWS = 8 }; // up to here a tile is too little work to hand out one by one

INLINE void run_quantized(const int form, const int group_size, worker_t *worker, const linear_args_t *args) {
    const int64_t rows = num_rows(worker, args->rows);
    const int64_t tiles = ((int64_t)args->weight->out_features + TILE - 1) / TILE;
    if (rows <= STATIC_ROWS) {
        const span_t mine = share(worker, tiles);
        for (int64_t tile = mine.begin; tile < mine.end; tile++) rows_by_tile(form, group_size, args, rows, tile);
    } else {
        for (int64_t tile; (tile = next_item(worker)) < tiles;) rows_by_tile(form, group_size, args, rows, tile);
    }
}

#endif
