// Products: the tiles of 16 output features are divided among the threads, each of which brings all rows to its tiles.
#include "octavo.h"

enum {
    FEW_ROWS = 8, // up to here a tile is little work, and its weights come from memory: long spans
    TURNS = 4, // above
};

static int64_t num_tiles(const linear_args_t *args) { return ((int64_t)args->weight->out_features + TILE - 1) / TILE; }

static int32_t turns(const step_t *step, const linear_args_t *args) { return num_rows(step, args->rows) <= FEW_ROWS ? 1 : TURNS; }

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const linear_args_t *args = context;
    if (phase || num_rows(step, args->rows) == 0) return 0;
    return num_spans(num_tiles(args), num_threads, turns(step, args));
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const linear_args_t *args = context;
    const step_t *step = worker->step;
    const span_t tiles = span_of(item, num_tiles(args), num_threads, turns(step, args));
    if (args->weight->form == WEIGHT_Q4) linear_q4_tiles(step, args, tiles);
    else if (args->weight->form == WEIGHT_Q8) linear_q8_tiles(step, args, tiles);
    else linear_float_tiles(step, args, tiles);
    (void)phase;
}

const kernel_t linear_kernel = {count, run};
