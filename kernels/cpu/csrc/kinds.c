// The operations by their kinds, as lists of them name them.
#include "octavo.h"

static const kernel_t *const by_kind[] = {
    [OP_EMBEDDING] = &embedding_kernel, [OP_NORM] = &norm_kernel,           [OP_QUANTIZE] = &quantize_kernel,
    [OP_LINEAR] = &linear_kernel,       [OP_ACTIVATION] = &activation_kernel, [OP_ROTARY_KV] = &rotary_kv_kernel,
    [OP_ATTENTION] = &attention_kernel, [OP_GATHER] = &gather_kernel,       [OP_COPY_BLOCKS] = &copy_blocks_kernel,
    [OP_PACK] = &pack_kernel,           [OP_SAMPLE] = &sample_kernel,       [OP_LOGPROBS] = &logprobs_kernel,
};

const kernel_t *kernel_of(const op_t *op) { return by_kind[op->kind]; }
