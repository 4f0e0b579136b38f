// RMSNorm (Zhang and Sennrich, 2019), with the residual added first where there is one, and the result quantised where a product wants it.
#include "octavo.h"
#include "simd.h"

// The sum of squares in 32 lanes of fixed columns: the same for a row whatever is around it.
static float mean_square(const float *x, int32_t n) {
    v8f sums[4] = {{0}, {0}, {0}, {0}};
    int32_t i = 0;
    for (; i + 4 * LANES <= n; i += 4 * LANES) {
        for (int v = 0; v < 4; v++) {
            const v8f part = v_load(x + i + v * LANES);
            sums[v] = v_fma(part, part, sums[v]);
        }
    }
    for (; i < n; i += LANES) {
        const v8f part = i + LANES <= n ? v_load(x + i) : v_load_part(x + i, n - i);
        sums[0] = v_fma(part, part, sums[0]);
    }
    return v_sum((sums[0] + sums[1]) + (sums[2] + sums[3])) / (float)n;
}

static void add(float *residual, const float *x, int32_t n) {
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(residual + i, v_load(residual + i) + v_load(x + i));
    for (; i < n; i++) residual[i] += x[i];
}

void norm_row(const float *x, const float *weight, float *out, int32_t n, float eps) {
    const float inverse = 1.0f / sqrtf(mean_square(x, n) + eps);
    int32_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(out + i, v_load(x + i) * inverse * v_load(weight + i));
    for (; i < n; i++) out[i] = x[i] * inverse * weight[i];
}

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const norm_args_t *args = context;
    return phase ? 0 : num_spans(num_rows(step, args->rows), num_threads, ROW_TURNS);
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const norm_args_t *args = context;
    const int64_t n = args->features;
    const span_t rows = span_of(item, num_rows(worker->step, args->rows), num_threads, ROW_TURNS);
    float *own = args->out ? NULL : scratch(worker, (size_t)n * sizeof(float));
    for (int64_t r = rows.begin; r < rows.end; r++) {
        const float *x = args->x + r * n;
        if (args->residual) {
            add(args->residual + r * n, x, args->features);
            x = args->residual + r * n;
        }
        float *out = args->out ? args->out + r * n : own;
        norm_row(x, args->weight, out, args->features, args->eps);
        if (args->codes.data) quantize_row(out, &args->codes, r);
    }
    (void)phase;
}

const kernel_t norm_kernel = {count, run};
