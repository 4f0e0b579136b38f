// Activations as integers: per row and group of features, a float scale and codes of 8 or 16 bits.
//
// `codes_t` in octavo.h has the layout. Weights of more than 4 bits meet 16-bit codes; others 8-bit ones, but for groups that stand out. The
// scale is the group's own, so a row's codes depend on that row alone; of a group that holds an infinity or a NaN it is not finite, which
// shows in every product that reads the row.
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

typedef struct {
    float scale;
    float sum; // of the codes, times the scale
} pair_t;

INLINE float largest_magnitude(const float *x, const int vectors) {
    v8f largest = v_set(0.0f);
    for (int v = 0; v < vectors; v++) largest = v_max_magnitude(largest, v_abs(v_load(x + v * LANES)));
    return v_max_magnitude_lane(largest);
}

INLINE pair_t quantize_group(const float *x, float range, uint8_t *out, const int vectors, const int code_bytes) {
    const float top = code_bytes == CODES_INT8 ? 127.0f : 32767.0f, scale = range / top;
    const v8f inverse = v_set(range > 0.0f ? top / range : 0.0f);
    v8i sum = {0};
    for (int v = 0; v < vectors; v++) {
        const v8i codes = v_round(v_load(x + v * LANES) * inverse);
        sum += codes;
        if (code_bytes == CODES_INT8) store_codes8((int8_t *)out + v * LANES, codes);
        else store_codes16((int16_t *)out + v * LANES, codes);
    }
    return (pair_t){scale, scale * (float)sum_codes(sum)};
}

// Codes of 16 bits in two of 8: 256 * first + second.
INLINE pair_t quantize_outliers(const float *x, float range, uint8_t *first, uint8_t *second, const int vectors) {
    const float top = 127.0f * 256.0f, scale = range / top;
    const v8f inverse = v_set(top / range);
    v8i sum = {0};
    for (int v = 0; v < vectors; v++) {
        const v8i codes = v_round(v_load(x + v * LANES) * inverse), high = (codes + 128) >> 8;
        sum += codes;
        store_codes8((int8_t *)first + v * LANES, high);
        store_codes8((int8_t *)second + v * LANES, codes - (high << 8));
    }
    return (pair_t){scale, scale * (float)sum_codes(sum)};
}

INLINE void quantize_groups16(const float *x, uint8_t *row, int32_t features, const int group_size) {
    pair_t *pairs = (pair_t *)(row + (int64_t)features * CODES_INT16);
    for (int32_t g = 0; g < features / group_size; g++, x += group_size, row += group_size * CODES_INT16)
        pairs[g] = quantize_group(x, largest_magnitude(x, group_size / LANES), row, group_size / LANES, CODES_INT16);
}

// A few features of most models are many times larger than all others, and with one of them in a group, the others are rounded as
// coarsely: most of what 8 bits cost in quality comes from such groups (Dettmers et al., 2022, LLM.int8(), section 3). A group stands out
// when its range is more than OUTLIER times the mean of the row's, and then has codes of 16 bits.
#define OUTLIER 4.0f

INLINE void quantize_groups8(const float *x, uint8_t *row, int32_t features, const int group_size) {
    const int32_t groups = features / group_size;
    pair_t *pairs = (pair_t *)(row + features);
    uint32_t *outliers = (uint32_t *)(row + outlier_words_at(features, group_size));
    uint8_t *second = row + remainders_at(features, group_size);
    float total = 0.0f;
    for (int32_t g = 0; g < groups; g++) { // kept where the scales will be
        pairs[g].scale = largest_magnitude(x + g * group_size, group_size / LANES);
        total += pairs[g].scale;
    }
    const float most = OUTLIER * total / (float)groups;
    for (int32_t g = 0; g < groups; g++, x += group_size, row += group_size, second += group_size) {
        const float range = pairs[g].scale;
        const uint32_t stands_out = range > most;
        if (stands_out) pairs[g] = quantize_outliers(x, range, row, second, group_size / LANES);
        else pairs[g] = quantize_group(x, range, row, group_size / LANES, CODES_INT8);
        outliers[g / 32] = (g % 32 ? outliers[g / 32] : 0) | stands_out << g % 32;
    }
}

void quantize_row(const float *x, const codes_t *codes, int64_t row) {
    uint8_t *out = codes->data + row * codes->row_bytes;
    if (codes->code_bytes == CODES_INT8) {
        if (codes->group_size == 32) quantize_groups8(x, out, codes->features, 32);
        else quantize_groups8(x, out, codes->features, 16);
    } else {
        if (codes->group_size == 32) quantize_groups16(x, out, codes->features, 32);
        else quantize_groups16(x, out, codes->features, 16);
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
