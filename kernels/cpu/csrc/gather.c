// Rows by index, and blocks by pairs: plain copies.
#include <string.h>

#include "octavo.h"

static int64_t count_rows(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    (void)context;
    return phase ? 0 : num_spans(step->num_logits, num_threads, 1);
}

static void gather_rows(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const gather_args_t *args = context;
    const int32_t *indices = args->indices ? args->indices : worker->step->logits_indices;
    const int64_t n = args->features;
    const span_t rows = span_of(item, worker->step->num_logits, num_threads, 1);
    for (int64_t r = rows.begin; r < rows.end; r++) memcpy(args->out + r * n, args->x + indices[r] * n, (size_t)n * sizeof(float));
    (void)phase;
}

const kernel_t gather_kernel = {count_rows, gather_rows};

static int64_t count_pairs(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const copy_blocks_args_t *args = context;
    (void)step;
    return phase ? 0 : num_spans(args->num_pairs, num_threads, 1);
}

static void copy_pairs(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const copy_blocks_args_t *args = context;
    const span_t pairs = span_of(item, args->num_pairs, num_threads, 1);
    for (int64_t p = pairs.begin; p < pairs.end; p++) {
        const uint8_t *block = args->source + args->pairs[2 * p] * args->source_stride_bytes;
        memcpy(args->target + args->pairs[2 * p + 1] * args->target_stride_bytes, block, (size_t)args->block_bytes);
    }
    (void)worker, (void)phase;
}

const kernel_t copy_blocks_kernel = {count_pairs, copy_pairs};
