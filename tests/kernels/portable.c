// Runs products and attention on made-up numbers and prints what comes out, so that builds for different processors can be compared.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../kernels/cpu/csrc/octavo.h"

static uint32_t state = 1;

static float noise(void) {
    state = state * 1664525u + 1013904223u;
    return (float)(state >> 8) / 8388608.0f - 1.0f;
}

static float *floats(int64_t n) {
    float *out = malloc((size_t)n * sizeof(float));
    for (int64_t i = 0; i < n; i++) out[i] = noise();
    return out;
}

static void print(const char *name, const float *x, int64_t n) {
    printf("%s", name);
    for (int64_t i = 0; i < n; i++) printf(" %.9g", x[i]);
    printf("\n");
}

static void run(pool_t *pool, int32_t kind, const void *args, const step_t *step) {
    const op_t op = {.kind = kind, .args = args};
    octavo_run(pool, &op, 1, step);
}

enum { ROWS = 13, IN = 96, OUT = 37 };

// The rows times a matrix in one of the forms.
static void product(pool_t *pool, int32_t form, int32_t group_size, int32_t code_bytes) {
    const int32_t is_q4 = form == WEIGHT_Q4, groups = group_size ? IN / group_size : 0;
    weight_t weight = {.form = form, .in_features = IN, .out_features = OUT, .group_size = group_size, .scale_bytes = 4, .has_mins = is_q4};
    weight.group_bytes = (int64_t)TILE * group_size / (is_q4 ? 2 : 1) + TILE * 4 * (is_q4 ? 2 : 1);
    weight.data = calloc(1, 48 * IN * 4 + 48 * 16 * (size_t)weight.group_bytes);
    int8_t codes[OUT * IN];
    uint16_t halves[OUT * IN];
    for (int i = 0; i < OUT * IN; i++) {
        codes[i] = (int8_t)(is_q4 ? 7.5f + 7.4f * noise() : 127.0f * noise());
        halves[i] = (uint16_t)(0x3c00 + (int)(500.0f * noise()));
    }
    const float *values = floats(OUT * IN), *scales = floats(OUT * IN), *mins = floats(OUT * IN), *x = floats(ROWS * IN);
    const int is_half = form == WEIGHT_F16 || form == WEIGHT_BF16;
    const void *stored = group_size ? (const void *)codes : is_half ? (const void *)halves : (const void *)values;
    const pack_args_t pack = {.weight = &weight, .values = stored, .scales = scales, .mins = is_q4 ? mins : NULL};
    const step_t step = {.num_tokens = ROWS};
    run(pool, OP_PACK, &pack, &step);
    codes_t rows = {.features = IN, .group_size = group_size, .code_bytes = code_bytes, .row_bytes = IN * code_bytes + groups * 8};
    rows.data = calloc(ROWS, (size_t)rows.row_bytes + 8);
    const quantize_args_t quantize = {.x = x, .codes = rows};
    if (group_size) run(pool, OP_QUANTIZE, &quantize, &step);
    float out[ROWS * OUT];
    const linear_args_t linear = {.weight = &weight, .x = x, .codes = rows, .out = out};
    run(pool, OP_LINEAR, &linear, &step);
    print("product", out, ROWS * OUT);
}

enum { HEADS = 6, KV_HEADS = 2, HEAD = 40, BLOCK = 16, CONTEXT = 300 };

// A prompt's rotation, cache write and attention, then the decode of its last token.
static void attention(pool_t *pool, int32_t element) {
    kv_t kv = {.element = element, .block_size = BLOCK, .num_heads = HEADS, .num_kv_heads = KV_HEADS, .head_size = HEAD, .rotary_dim = HEAD,
               .sliding_window = 200, .scale = 0.2f};
    kv.block_bytes = 2 * KV_HEADS * BLOCK * kv_row_bytes(&kv);
    kv.data = calloc(20, (size_t)kv.block_bytes);
    int32_t positions[CONTEXT], table[20], starts[2] = {0, CONTEXT}, lens[1] = {CONTEXT};
    int64_t slots[CONTEXT];
    for (int i = 0; i < 20; i++) table[i] = 19 - i;
    for (int i = 0; i < CONTEXT; i++) positions[i] = i, slots[i] = table[i / BLOCK] * BLOCK + i % BLOCK;
    step_t step = {.num_tokens = CONTEXT, .num_seqs = 1, .max_query_len = CONTEXT, .max_seq_len = CONTEXT, .block_table_stride = 20,
                   .positions = positions, .slot_mapping = slots, .query_start_loc = starts, .seq_lens = lens, .block_tables = table};
    const int64_t row = (HEADS + 2 * KV_HEADS) * HEAD;
    float *qkv = floats(CONTEXT * row), *out = floats(CONTEXT * HEADS * HEAD), last[HEADS * HEAD];
    const float *norm = floats(HEAD);
    const rotary_args_t rotary = {.kv = kv, .qkv = qkv, .cos_sin = floats(CONTEXT * HEAD), .cos_sin_stride = HEAD, .q_norm = norm, .k_norm = norm};
    run(pool, OP_ROTARY_KV, &rotary, &step);
    float *partials = calloc((size_t)octavo_attention_partials_floats(&kv, 2), sizeof(float));
    attention_args_t args = {.kv = kv, .qkv = qkv, .out = out, .partials = partials};
    run(pool, OP_ATTENTION, &args, &step);
    print("attention", out + (CONTEXT - 20) * HEADS * HEAD, 20 * HEADS * HEAD);
    starts[1] = step.num_tokens = step.max_query_len = 1;
    args.qkv = qkv + (CONTEXT - 1) * row;
    args.out = last;
    run(pool, OP_ATTENTION, &args, &step);
    printf("decode %s\n", memcmp(last, out + (CONTEXT - 1) * HEADS * HEAD, sizeof last) ? "differs" : "has the same bits");
}

int main(void) {
    pool_t *pool = octavo_pool_create(2);
    product(pool, WEIGHT_Q4, 32, CODES_INT8);
    product(pool, WEIGHT_Q4, 16, CODES_INT8);
    product(pool, WEIGHT_Q8, 32, CODES_INT16);
    product(pool, WEIGHT_F32, 0, 0);
    product(pool, WEIGHT_F16, 0, 0);
    product(pool, WEIGHT_BF16, 0, 0);
    for (int32_t element = KV_F32; element <= KV_I8; element++) attention(pool, element);
    octavo_pool_destroy(pool);
    return 0;
}
