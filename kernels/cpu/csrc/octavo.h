// The shared vocabulary of the CPU kernels: what a step is, what each operation's arguments are, how threads share work.
//
// Every operation is a function that all threads of a pool enter together. It divides its items among them (`share`, `next_item`), and
// whoever calls it lets the threads meet before the next operation starts. So a single operation and a whole forward pass run the same
// code, and give the same bits. kernels/cpu/structs.py mirrors the argument structs of this file field by field.
#ifndef OCTAVO_H
#define OCTAVO_H

#include <stddef.h>
#include <stdint.h>

// One step's numbers and addresses: kernels/batch.py explains the fields.
typedef struct {
    int32_t num_tokens;
    int32_t num_seqs;
    int32_t num_logits;
    int32_t max_query_len;
    int32_t max_seq_len;
    int32_t block_table_stride; // entries between two rows of block_tables
    const int32_t *token_ids;
    const int32_t *positions;
    const int64_t *slot_mapping;
    const int32_t *query_start_loc;
    const int32_t *seq_lens;
    const int32_t *block_tables;
    const int32_t *logits_indices;
} step_t;

// ---- Threads (threads.c) ----------------------------------------------------------------------------------------------------------

typedef struct pool pool_t;

typedef struct {
    pool_t *pool;
    const step_t *step;
    int index; // of this thread, in [0, count)
    int count; // threads in the pool
    uint32_t phase; // barriers passed
    void *scratch;
    size_t scratch_bytes;
} worker_t;

typedef struct {
    int64_t begin, end;
} span_t;

typedef void (*region_t)(worker_t *worker, const void *context);

pool_t *octavo_pool_create(int32_t num_threads);
void octavo_pool_destroy(pool_t *pool);
int64_t octavo_pool_scratch_bytes(const pool_t *pool);
// Runs `region` once on every thread of the pool, the caller among them; other callers wait.
void pool_run(pool_t *pool, const step_t *step, region_t region, const void *context);

void barrier(worker_t *worker);           // all threads meet; starts a new count of `next_item`
int64_t next_item(worker_t *worker);      // 0, 1, 2, ... handed out once each among all threads between two barriers
span_t share(const worker_t *worker, int64_t num_items); // this thread's contiguous part, fixed by its index
void *scratch(worker_t *worker, size_t bytes);           // this thread's own memory, 64-byte aligned

// ---- Activations -------------------------------------------------------------------------------------------------------------------

// Which count of the step an operation's rows are.
enum { ROWS_TOKENS = 0, ROWS_LOGITS = 1 };

static inline int64_t num_rows(const worker_t *worker, int32_t rows) {
    return rows == ROWS_LOGITS ? worker->step->num_logits : worker->step->num_tokens;
}

enum { CODES_INT8 = 1, CODES_INT16 = 2 };

// Rows of activations as integers: per row `features` codes (int8 or int16), then per group of `group_size` features two floats,
// the scale and scale * sum of the codes. x[i] ~ scale * code[i]. `data` may be NULL: then nothing is quantised.
typedef struct {
    uint8_t *data;
    int64_t row_bytes;
    int32_t features; // a multiple of group_size
    int32_t group_size; // 16 or 32
    int32_t code_bytes; // CODES_INT8 or CODES_INT16
} codes_t;

void quantize_row(const float *x, const codes_t *codes, int64_t row);

// ---- Weights -----------------------------------------------------------------------------------------------------------------------

enum { WEIGHT_F32 = 0, WEIGHT_Q4 = 1, WEIGHT_Q8 = 2 };
enum { TILE = 16 }; // output features that are computed together

// A matrix [out_features, in_features] as tiles of 16 output features; the last tile is padded with zeros.
//   F32: per tile, for each input feature the 16 weights of the tile's outputs.
//   Q4, Q8: per tile, per group of input features: codes, 16 scales, and 16 minimums if has_mins (linear_q4.c, linear_q8.c).
typedef struct {
    const void *data;
    const float *bias; // [out_features] or NULL
    int32_t form; // WEIGHT_*
    int32_t in_features;
    int32_t out_features;
    int32_t group_size; // 16 or 32; 0 for F32
    int32_t scale_bytes; // 2: scales and minimums are float16; 4: float32
    int32_t has_mins;
    int64_t group_bytes; // of one tile's group
} weight_t;

// ---- Operations --------------------------------------------------------------------------------------------------------------------

enum {
    OP_EMBEDDING = 0,
    OP_NORM = 1,
    OP_QUANTIZE = 2,
    OP_LINEAR = 3,
    OP_ACTIVATION = 4,
    OP_ROTARY_KV = 5,
    OP_ATTENTION = 6,
    OP_GATHER = 7,
    OP_COPY_BLOCKS = 8,
};

typedef struct {
    int32_t kind; // OP_*
    int32_t unused;
    const void *args; // the struct below that belongs to the kind
} op_t;

// Walks `num_ops` operations in one parallel region.
void octavo_run(pool_t *pool, const op_t *ops, int32_t num_ops, const step_t *step);

typedef struct {
    const weight_t *table;
    float *out; // [num_tokens, in_features]
} embedding_args_t;

typedef struct {
    const float *x;
    float *residual; // NULL; or the row is first added to it, and the sum is normed
    const float *weight;
    float *out; // NULL if only codes are wanted
    codes_t codes;
    int32_t rows;
    int32_t features;
    float eps;
} norm_args_t;

typedef struct {
    const float *x;
    codes_t codes;
    int32_t rows;
} quantize_args_t;

typedef struct {
    const weight_t *weight;
    const float *x; // F32
    codes_t codes; // Q4, Q8
    float *out;
    int32_t rows;
} linear_args_t;

enum { ACTIVATION_SILU = 0, ACTIVATION_GELU_TANH = 1 };

typedef struct {
    const float *gate_up; // [rows, 2 * features]
    float *out; // [rows, features], or NULL if only codes are wanted
    codes_t codes;
    int32_t rows;
    int32_t features;
    int32_t function; // ACTIVATION_*
} activation_args_t;

enum { KV_F32 = 0, KV_F16 = 1, KV_BF16 = 2 };

// One layer's cache [num_blocks, 2, num_kv_heads, block_size, head_size] and its attention's numbers.
typedef struct {
    uint8_t *data;
    int64_t block_bytes; // from one block to the next
    int32_t element; // KV_*
    int32_t block_size;
    int32_t num_heads;
    int32_t num_kv_heads;
    int32_t head_size;
    int32_t rotary_dim;
    int32_t sliding_window; // 0: none
    float scale;
} kv_t;

typedef struct {
    kv_t kv;
    float *qkv; // [num_tokens, (num_heads + 2 * num_kv_heads) * head_size]
    const float *cos_sin; // [max_positions, cos_sin_stride]
    int32_t cos_sin_stride;
} rotary_args_t;

typedef struct {
    kv_t kv;
    const float *qkv;
    float *out; // [num_tokens, num_heads * head_size]
    float *partials; // attention_partials_floats() floats
} attention_args_t;

typedef struct {
    const float *x;
    const int32_t *indices; // NULL: the step's logits_indices
    float *out; // [num_logits, features]
    int32_t features;
} gather_args_t;

typedef struct {
    uint8_t *cache;
    const int64_t *pairs; // [num_pairs, 2] of source and destination
    int64_t num_pairs;
    int64_t stride_bytes; // from one block to the next
    int64_t block_bytes; // that a block holds
} copy_blocks_args_t;

void run_embedding(worker_t *worker, const embedding_args_t *args);
void run_norm(worker_t *worker, const norm_args_t *args);
void run_quantize(worker_t *worker, const quantize_args_t *args);
void run_linear_f32(worker_t *worker, const linear_args_t *args);
void run_linear_q4(worker_t *worker, const linear_args_t *args);
void run_linear_q8(worker_t *worker, const linear_args_t *args);
void run_activation(worker_t *worker, const activation_args_t *args);
void run_rotary_kv(worker_t *worker, const rotary_args_t *args);
void run_attention(worker_t *worker, const attention_args_t *args);
void run_gather(worker_t *worker, const gather_args_t *args);
void run_copy_blocks(worker_t *worker, const copy_blocks_args_t *args);

#endif
