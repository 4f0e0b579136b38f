// Activations as integers: per row and group of features, a float scale and codes of 8 or 16 bits.
//
// The scale is the group's own, so a row's codes depend on that row alone. Of a group that is not finite it is not either, and shows in all
// that reads the row.
#include "octavo.h"
#include "simd.h"

INLINE void store_codes8(int8_t *out, v8i codes) {
#ifdef __AVX2__
    const __m256i x = (__m256i)codes;
    const __m128i x16 = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
    _mm_storel_epi64((__m128i *)out, _mm_packs_epi16(x16, x16));
#else
    for (int i = 0; i < LANES; i++) out[i] = (int8_t)codes[i];
#endif
}

INLINE void store_codes16(int16_t *out, v8i codes) {
#ifdef __AVX2__
    const __m256i x = (__m256i)codes;
    _mm_storeu_si128((__m128i *)out, _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1)));
#else
    for (int i = 0; i < LANES; i++) out[i] = (int16_t)codes[i];
#endif
}

INLINE int32_t sum_codes(v8i x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

INLINE void quantize_groups(const float *x, uint8_t *row, int32_t features, const int group_size, const int code_bytes) {
    const int vectors = group_size / LANES;
    const float top = code_bytes == CODES_INT8 ? 127.0f : 32767.0f;
    float *scales = (float *)(row + (int64_t)features * code_bytes);
    for (int32_t start = 0; start < features; start += group_size, scales += 2) {
        v8f values[4];
        v8f largest = v_set(0.0f);
        for (int v = 0; v < vectors; v++) {
            values[v] = v_load(x + start + v * LANES);
            largest = v_max_magnitude(largest, v_abs(values[v]));
        }
        const float range = v_max_magnitude_lane(largest);
        const v8f inverse = v_set(range > 0.0f ? top / range : 0.0f);
        v8i sum = {0};
        for (int v = 0; v < vectors; v++) {
            const v8i codes = v_round(values[v] * inverse);
            sum += codes;
            if (code_bytes == CODES_INT8) store_codes8((int8_t *)row + start + v * LANES, codes);
            else store_codes16((int16_t *)row + start + v * LANES, codes);
        }
        scales[0] = range / top;
        scales[1] = scales[0] * (float)sum_codes(sum);
    }
}

void quantize_row(const float *x, const codes_t *codes, int64_t row) {
    uint8_t *out = codes->data + row * codes->row_bytes;
    if (codes->code_bytes == CODES_INT8) {
        if (codes->group_size == 32) quantize_groups(x, out, codes->features, 32, CODES_INT8);
        else quantize_groups(x, out, codes->features, 16, CODES_INT8);
    } else {
        if (codes->group_size == 32) quantize_groups(x, out, codes->features, 32, CODES_INT16);
        else quantize_groups(x, out, codes->features, 16, CODES_INT16);
    }
}

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const quantize_args_t *args = context;
    return phase ? 0 : num_spans(num_rows(step, args->rows), num_threads, ROW_TURNS);
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const quantize_args_t *args = context;
    const span_t rows = span_of(item, num_rows(worker->step, args->rows), num_threads, ROW_TURNS);
    for (int64_t r = rows.begin; r < rows.end; r++) quantize_row(args->x + r * args->codes.features, &args->codes, r);
    (void)phase;
}

const kernel_t quantize_kernel = {count, run};
