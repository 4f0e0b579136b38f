// Rows read out of a packed matrix: the table of token embeddings, which is often the output layer's matrix too.
#include "quantized.h"

static void read_row_of_floats(const weight_t *table, int64_t row, float *out) {
    const int64_t in = table->in_features, start = row / TILE * in * TILE + row % TILE;
    const float *floats = (const float *)table->data + start;
    const uint16_t *halves = (const uint16_t *)table->data + start;
    if (table->form == WEIGHT_F32)
        for (int64_t k = 0; k < in; k++) out[k] = floats[k * TILE];
    else if (table->form == WEIGHT_F16)
        for (int64_t k = 0; k < in; k++) out[k] = half_to_float(halves[k * TILE]);
    else
        for (int64_t k = 0; k < in; k++) out[k] = bfloat_to_float(halves[k * TILE]);
}

static float scale_at(const uint8_t *scales, int64_t index, int32_t scale_bytes) {
    return scale_bytes == 2 ? half_to_float(((const uint16_t *)scales)[index]) : ((const float *)scales)[index];
}

static void read_row_quantized(const weight_t *table, int64_t row, float *out) {
    const int64_t size = table->group_size, groups = table->in_features / size, c = row % TILE;
    const uint8_t *group = (const uint8_t *)table->data + row / TILE * groups * table->group_bytes;
    for (int64_t g = 0; g < groups; g++, group += table->group_bytes, out += size) {
        const uint8_t *behind = group + code_bytes_of_group(table->form, table->group_size);
        const float scale = scale_at(behind, c, table->scale_bytes);
        const float minimum = table->has_mins ? scale_at(behind + TILE * table->scale_bytes, c, table->scale_bytes) : 0.0f;
        for (int64_t k = 0; k < size; k++) {
            int32_t code;
            if (table->form == WEIGHT_Q8) {
                code = (int8_t)group[k / 2 * 32 + 2 * c + k % 2];
            } else {
                const int64_t within = k % (size / 2);
                const uint8_t pair = group[within / 4 * 64 + 4 * c + within % 4];
                code = k < size / 2 ? pair & 15 : pair >> 4;
            }
            out[k] = scale * (float)code + minimum;
        }
    }
}

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    (void)context;
    return phase ? 0 : num_spans(step->num_tokens, num_threads, ROW_TURNS);
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const embedding_args_t *args = context;
    const weight_t *table = args->table;
    const span_t tokens = span_of(item, worker->step->num_tokens, num_threads, ROW_TURNS);
    for (int64_t t = tokens.begin; t < tokens.end; t++) {
        float *out = args->out + t * table->in_features;
        if (table->group_size) read_row_quantized(table, worker->step->token_ids[t], out);
        else read_row_of_floats(table, worker->step->token_ids[t], out);
    }
    (void)phase;
}

const kernel_t embedding_kernel = {count, run};
