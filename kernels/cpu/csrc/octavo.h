// The shared vocabulary of the CPU kernels: what a step is, what each operation's arguments are, how threads share work.
//
// Every operation is work on items that do not depend on each other: a function counts them, another does one. Threads take items as
// they come for them, and an operation is complete when its last item is. So a single operation and a whole forward pass run the same
// code, and give the same bits on any number of threads. kernels/cpu/structs.py mirrors the argument structs field by field.
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

// ---- Threads (threads.c) -----------------------------------------------------------------------------------------------------

typedef struct pool pool_t;

typedef struct {
    pool_t *pool;
    const step_t *step; // of the item under way
    void *scratch;
    size_t scratch_bytes;
} worker_t;

// What an operation does: `count` says how many items its phase has, 0 past its last phase; `run` does one of them. All items of a phase
// are complete before one of the next begins.
typedef struct {
    int64_t (*count)(const step_t *step, const void *args, int32_t num_threads, int32_t phase);
    void (*run)(worker_t *worker, const void *args, int32_t num_threads, int32_t phase, int64_t item);
} kernel_t;

typedef struct {
    int32_t kind; // OP_*
    int32_t unused;
    const void *args; // the struct below that belongs to the kind
} op_t;

const kernel_t *kernel_of(const op_t *op); // kinds.c

pool_t *octavo_pool_create(int32_t num_threads);
void octavo_pool_destroy(pool_t *pool);
int64_t octavo_pool_scratch_bytes(const pool_t *pool);
// Runs a list of operations, one after the other, on all threads of the pool, the caller among them. Other callers wait.
void octavo_run(pool_t *pool, const op_t *ops, int32_t num_ops, const step_t *step);

void *scratch(worker_t *worker, size_t bytes); // this thread's own memory, 64-byte aligned, until its item is done

typedef struct {
    int64_t begin, end;
} span_t;

// Things (rows, tiles) as items: `turns` spans per thread, but none empty. More turns let a faster core do more.
static inline int64_t num_spans(int64_t things, int32_t num_threads, int32_t turns) {
    const int64_t most = (int64_t)num_threads * turns;
    return things < most ? things : most;
}

static inline span_t span_of(int64_t item, int64_t things, int32_t num_threads, int32_t turns) {
    const int64_t spans = num_spans(things, num_threads, turns);
    return (span_t){things * item / spans, things * (item + 1) / spans};
}

enum { ROW_TURNS = 2 };

// ---- Activations -------------------------------------------------------------------------------------------------------------------

// Which count of the step an operation's rows are.
enum { ROWS_TOKENS = 0, ROWS_LOGITS = 1 };

static inline int64_t num_rows(const step_t *step, int32_t rows) { return rows == ROWS_LOGITS ? step->num_logits : step->num_tokens; }

enum { CODES_INT8 = 1, CODES_INT16 = 2 };

// Rows of activations as integers: per row `features` codes (int8 or int16), then per group of `group_size` features two floats,
// the scale and scale * sum of the codes. x[i] ~ scale * code[i]. `data` may be NULL: then nothing is quantised.
// With codes of 8 bits there follow, from outlier_words_at, a bit for each group in words of 32: whether it stands out (quantize.c), and,
// from remainders_at, second codes. In a group that stands out x[i] ~ scale * (256 * code[i] + second code[i]); in the others the second
// codes are anything.
typedef struct {
    uint8_t *data;
    int64_t row_bytes;
    int32_t features; // a multiple of group_size
    int32_t group_size; // 16 or 32
    int32_t code_bytes; // CODES_INT8 or CODES_INT16
} codes_t;

static inline int64_t outlier_words_at(int64_t features, int64_t group_size) { return features + features / group_size * 8; }
static inline int64_t remainders_at(int64_t features, int64_t group_size) {
    return outlier_words_at(features, group_size) + (features / group_size + 31) / 32 * 4;
}

void quantize_row(const float *x, const codes_t *codes, int64_t row);
void norm_row(const float *x, const float *weight, float *out, int32_t n, float eps); // out may be x

// ---- Weights -----------------------------------------------------------------------------------------------------------------------

enum { WEIGHT_F32 = 0, WEIGHT_Q4 = 1, WEIGHT_Q8 = 2, WEIGHT_F16 = 3, WEIGHT_BF16 = 4 };
enum { TILE = 16 }; // output features that are computed together

// A matrix [out_features, in_features] as tiles of 16 output features; the last tile is padded with zeros.
//   F32, F16, BF16: per tile, for each input feature the 16 weights of the tile's outputs.
//   Q4, Q8: per tile, per group of input features: codes, 16 scales, and 16 minimums if has_mins (linear_q4.c, linear_q8.c).
typedef struct {
    const void *data;
    const float *bias; // [out_features] or NULL
    int32_t form; // WEIGHT_*
    int32_t in_features;
    int32_t out_features;
    int32_t group_size; // 16 or 32; 0 for floats
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
    OP_PACK = 9,
    OP_SAMPLE = 10,
    OP_LOGPROBS = 11,
};

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
    const float *x; // F32, F16, BF16
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

enum { KV_F32 = 0, KV_F16 = 1, KV_BF16 = 2, KV_I8 = 3 };

// One layer's cache [num_blocks, 2, num_kv_heads, block_size] of rows (kernels/kv_cache.py) and its attention's numbers.
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

// Of one key or value of one head: KV_I8 has a float32 scale behind the codes.
static inline int64_t kv_row_bytes(const kv_t *kv) {
    return kv->element == KV_F32 ? 4 * (int64_t)kv->head_size : kv->element == KV_I8 ? (int64_t)kv->head_size + 4 : 2 * (int64_t)kv->head_size;
}

typedef struct {
    kv_t kv;
    float *qkv; // [num_tokens, (num_heads + 2 * num_kv_heads) * head_size]
    const float *cos_sin; // [max_positions, cos_sin_stride]
    const float *q_norm, *k_norm; // [head_size], what each head of q and k is normed by before it is rotated; both NULL: not normed
    int32_t cos_sin_stride;
    float norm_eps;
} rotary_args_t;

typedef struct {
    kv_t kv;
    const float *qkv;
    float *out; // [num_tokens, num_heads * head_size]
    float *partials; // octavo_attention_partials_floats() floats
} attention_args_t;

int64_t octavo_attention_partials_floats(const kv_t *kv, int32_t num_threads);

typedef struct {
    const float *x;
    const int32_t *indices; // NULL: the step's logits_indices
    float *out; // [num_logits, features]
    int32_t features;
} gather_args_t;

typedef struct {
    const uint8_t *source;
    uint8_t *target;
    const int64_t *pairs; // [num_pairs, 2] of a block of the source and one of the target
    int64_t num_pairs;
    int64_t source_stride_bytes, target_stride_bytes; // from one block to the next
    int64_t block_bytes; // that a block holds
} copy_blocks_args_t;

// Brings a matrix as a checkpoint stores it into `weight`'s form.
typedef struct {
    const weight_t *weight;
    const void *values; // [out, in]: floats of the form's type, or int8 codes
    const float *scales, *mins; // [out, in / group_size]; mins may be NULL
    int32_t offset; // added to each code
} pack_args_t;

// Draws a token from each row of logits; kernels/sampling.py explains the settings.
typedef struct {
    const float *logits; // [num_rows, vocab_size]
    const float *temperature, *log_min_p;
    const int32_t *top_k;
    const double *top_p;
    const uint64_t *seeds, *sample_indices, *positions;
    int64_t *out; // [num_rows]
    int32_t num_rows;
    int32_t vocab_size;
} sample_args_t;

// Log probabilities; kernels/sampling.py explains the results.
typedef struct {
    const float *logits; // [num_rows, vocab_size]
    const int64_t *token_ids; // [num_rows]
    const int32_t *num_top; // [num_rows], at most `most`
    float *chosen; // [num_rows]
    int64_t *ranks; // [num_rows]
    int32_t *top_ids, *top_ranks; // [num_rows, most]
    float *top_values; // [num_rows, most]
    int32_t num_rows;
    int32_t vocab_size;
    int32_t most;
} logprobs_args_t;

extern const kernel_t embedding_kernel, norm_kernel, quantize_kernel, linear_kernel, activation_kernel, rotary_kv_kernel, attention_kernel,
    gather_kernel, copy_blocks_kernel, pack_kernel, sample_kernel, logprobs_kernel;

// One span of a product's tiles.
void linear_float_tiles(const step_t *step, const linear_args_t *args, span_t tiles);
void linear_q4_tiles(const step_t *step, const linear_args_t *args, span_t tiles);
void linear_q8_tiles(const step_t *step, const linear_args_t *args, span_t tiles);

#endif
