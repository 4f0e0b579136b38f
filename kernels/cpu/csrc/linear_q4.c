// Codes of up to 4 bits, unsigned; activations of 8 bits.
#include "quantized.h"

static void run_groups_of_32(worker_t *worker, const linear_args_t *args) { run_quantized(WEIGHT_Q4, 32, worker, args); }

static void run_groups_of_16(worker_t *worker, const linear_args_t *args) { run_quantized(WEIGHT_Q4, 16, worker, args); }

void run_linear_q4(worker_t *worker, const linear_args_t *args) {
    if (args->weight->group_size == 32) run_groups_of_32(worker, args);
    else run_groups_of_16(worker, args);
}
