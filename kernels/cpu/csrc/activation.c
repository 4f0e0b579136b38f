// silu(gate) * up and gelu(gate) * up (Shazeer, 2020), quantised where a product wants it.
#include "octavo.h"
#include "simd.h"

INLINE v8f silu(v8f x) { return x / (v_exp(-x) + 1.0f); }

// 0.5 x (1 + tanh(u)) is x times the logistic function of 2 u, with u = sqrt(2 / pi) (x + 0.044715 x**3).
INLINE v8f gelu_tanh(v8f x) {
    const v8f u2 = x * v_fma(x * x, v_set(2.0f * 0.7978845608f * 0.044715f), v_set(2.0f * 0.7978845608f));
    return x / (v_exp(-u2) + 1.0f);
}

INLINE v8f apply(const int function, v8f gate) { return function == ACTIVATION_SILU ? silu(gate) : gelu_tanh(gate); }

INLINE void activate(const float *gate, const float *up, float *out, int64_t n, const int function) {
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) v_store(out + i, apply(function, v_load(gate + i)) * v_load(up + i));
    if (i < n) v_store_part(out + i, apply(function, v_load_part(gate + i, n - i)) * v_load_part(up + i, n - i), n - i);
}

static void activate_row(const activation_args_t *args, int64_t row, float *out) {
    const int64_t n = args->features;
    const float *gate = args->gate_up + row * 2 * n;
    if (args->function == ACTIVATION_SILU) activate(gate, gate + n, out, n, ACTIVATION_SILU);
    else activate(gate, gate + n, out, n, ACTIVATION_GELU_TANH);
}

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const activation_args_t *args = context;
    return phase ? 0 : num_spans(num_rows(step, args->rows), num_threads, ROW_TURNS);
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const activation_args_t *args = context;
    const int64_t n = args->features;
    const span_t rows = span_of(item, num_rows(worker->step, args->rows), num_threads, ROW_TURNS);
    float *own = args->out ? NULL : scratch(worker, (size_t)n * sizeof(float));
    for (int64_t r = rows.begin; r < rows.end; r++) {
        float *out = args->out ? args->out + r * n : own;
        activate_row(args, r, out);
        if (args->codes.data) quantize_row(out, &args->codes, r);
    }
    (void)phase;
}

const kernel_t activation_kernel = {count, run};
