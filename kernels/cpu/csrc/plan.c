// Walks a list of operations in one parallel region: a whole forward pass is one call.
#include "octavo.h"

typedef struct {
    const op_t *ops;
    int32_t num_ops;
} list_t;

static void run_op(worker_t *worker, const op_t *op) {
    switch (op->kind) {
    case OP_EMBEDDING: run_embedding(worker, op->args); break;
    case OP_NORM: run_norm(worker, op->args); break;
    case OP_QUANTIZE: run_quantize(worker, op->args); break;
    case OP_LINEAR: {
        const linear_args_t *args = op->args;
        if (args->weight->form == WEIGHT_Q4) run_linear_q4(worker, args);
        else if (args->weight->form == WEIGHT_Q8) run_linear_q8(worker, args);
        else run_linear_f32(worker, args);
        break;
    }
    case OP_ACTIVATION: run_activation(worker, op->args); break;
    case OP_ROTARY_KV: run_rotary_kv(worker, op->args); break;
    case OP_ATTENTION: run_attention(worker, op->args); break;
    case OP_GATHER: run_gather(worker, op->args); break;
    case OP_COPY_BLOCKS: run_copy_blocks(worker, op->args); break;
    }
}

static void walk(worker_t *worker, const void *context) {
    const list_t *list = context;
    for (int32_t i = 0; i < list->num_ops; i++) {
        run_op(worker, &list->ops[i]);
        if (i + 1 < list->num_ops) barrier(worker); // pool_run ends with one of its own
    }
}

void octavo_run(pool_t *pool, const op_t *ops, int32_t num_ops, const step_t *step) {
    const list_t list = {ops, num_ops};
    pool_run(pool, step, walk, &list);
}
