// Rotary embedding of q and k in place (Su et al., 2021, half-split form), after their norm in models that have one, and the write of k
// and v into the paged cache.
#include "octavo.h"
#include "hadamard.h"
#include "half.h"

static void rotate(float *head, const float *cosines, const float *sines, int32_t half) {
    float *first = head, *second = head + half;
    int32_t i = 0;
    for (; i + LANES <= half; i += LANES) {
        const v8f a = v_load(first + i), b = v_load(second + i), c = v_load(cosines + i), s = v_load(sines + i);
        v_store(first + i, v_fma(a, c, -(b * s)));
        v_store(second + i, v_fma(b, c, a * s));
    }
    if (i < half) {
        const int64_t n = half - i;
        const v8f a = v_load_part(first + i, n), b = v_load_part(second + i, n);
        const v8f c = v_load_part(cosines + i, n), s = v_load_part(sines + i, n);
        v_store_part(first + i, v_fma(a, c, -(b * s)), n);
        v_store_part(second + i, v_fma(b, c, a * s), n);
    }
}

// A row of int8: codes of the rotated head, then their scale. A number that is none makes the scale none, and shows in all that reads the
// row.
static void write_codes(int8_t *out, const float *head, float *rotated, int64_t n) {
    hadamard(rotated, head, n);
    v8f largest = v_set(0.0f), poison = v_set(0.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        const v8f x = v_load_part(rotated + i, n - i < LANES ? n - i : LANES);
        largest = v_max(largest, v_abs(x));
        poison += x * 0.0f;
    }
    const float range = v_max_lane(largest), scale = range / 127.0f + v_sum(poison);
    const v8f inverse = v_set(range > 0.0f ? 127.0f / range : 0.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        const int64_t count = n - i < LANES ? n - i : LANES;
        const v8i codes = v_round(v_load_part(rotated + i, count) * inverse);
        for (int64_t j = 0; j < count; j++) out[i + j] = (int8_t)codes[j];
    }
    memcpy(out + n, &scale, sizeof scale);
}

// `room` is for head_size floats.
static void write_head(const kv_t *kv, const float *head, int64_t slot, int32_t value, int32_t kv_head, float *room) {
    const int64_t block = slot / kv->block_size, offset = slot % kv->block_size;
    const int64_t n = kv->head_size;
    const int64_t index = (int64_t)(value * kv->num_kv_heads + kv_head) * kv->block_size + offset;
    uint8_t *row = kv->data + block * kv->block_bytes + index * kv_row_bytes(kv);
    if (kv->element == KV_F32) {
        memcpy(row, head, (size_t)n * sizeof(float));
    } else if (kv->element == KV_F16) {
        uint16_t *out = (uint16_t *)row;
        int64_t i = 0;
        for (; i + LANES <= n; i += LANES) v_store_half(out + i, v_load(head + i));
        for (; i < n; i++) out[i] = float_to_half(head[i]);
    } else if (kv->element == KV_BF16) {
        for (int64_t i = 0; i < n; i++) ((uint16_t *)row)[i] = float_to_bfloat(head[i]);
    } else {
        write_codes((int8_t *)row, head, room, n);
    }
}

static int64_t heads_per_token(const kv_t *kv) { return kv->num_heads + 2 * kv->num_kv_heads; }

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const rotary_args_t *args = context;
    return phase ? 0 : num_spans(step->num_tokens * heads_per_token(&args->kv), num_threads, ROW_TURNS);
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const rotary_args_t *args = context;
    const kv_t *kv = &args->kv;
    const step_t *step = worker->step;
    const int64_t heads = heads_per_token(kv);
    const int32_t half = kv->rotary_dim / 2;
    const span_t all = span_of(item, step->num_tokens * heads, num_threads, ROW_TURNS);
    float *room = scratch(worker, (size_t)kv->head_size * sizeof(float));
    for (int64_t i = all.begin; i < all.end; i++) {
        const int64_t token = i / heads, head = i % heads;
        float *x = args->qkv + i * kv->head_size;
        if (head < kv->num_heads + kv->num_kv_heads) {
            const float *norm = head < kv->num_heads ? args->q_norm : args->k_norm;
            if (norm) norm_row(x, norm, x, kv->head_size, args->norm_eps);
            const float *cosines = args->cos_sin + (int64_t)step->positions[token] * args->cos_sin_stride;
            rotate(x, cosines, cosines + half, half);
        }
        if (head >= kv->num_heads && step->slot_mapping[token] >= 0) {
            const int32_t index = (int32_t)(head - kv->num_heads);
            write_head(kv, x, step->slot_mapping[token], index / kv->num_kv_heads, index % kv->num_kv_heads, room);
        }
    }
    (void)phase;
}

const kernel_t rotary_kv_kernel = {count, run};
