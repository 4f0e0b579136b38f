// Rows by index, and blocks by pairs: plain copies.
#include <string.h>

#include "octavo.h"

void run_gather(worker_t *worker, const gather_args_t *args) {
    const int32_t *indices = args->indices ? args->indices : worker->step->logits_indices;
    const int64_t n = args->features;
    const span_t rows = share(worker, worker->step->num_logits);
    for (int64_t r = rows.begin; r < rows.end; r++) memcpy(args->out + r * n, args->x + indices[r] * n, (size_t)n * sizeof(float));
}

void run_copy_blocks(worker_t *worker, const copy_blocks_args_t *args) {
    const span_t pairs = share(worker, args->num_pairs);
    for (int64_t p = pairs.begin; p < pairs.end; p++) {
        const uint8_t *source = args->cache + args->pairs[2 * p] * args->stride_bytes;
        memcpy(args->cache + args->pairs[2 * p + 1] * args->stride_bytes, source, (size_t)args->block_bytes);
    }
}
