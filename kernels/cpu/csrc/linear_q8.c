// Codes of 5 to 8 bits, signed; activations of 16 bits, so that what is lost is lost in the weights alone.
#include "quantized.h"

static void run_groups_of_32(worker_t *worker, const linear_args_t *args) { run_quantized(WEIGHT_Q8, 32, worker, args); }

static void run_groups_of_16(worker_t *worker, const linear_args_t *args) { run_quantized(WEIGHT_Q8, 16, worker, args); }

void run_linear_q8(worker_t *worker, const linear_args_t *args) {
    if (args->weight->group_size == 32) run_groups_of_32(worker, args);
    else run_groups_of_16(worker, args);
}
