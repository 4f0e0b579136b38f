// The token of each row of logits: temperature, min_p, top_k, top_p and one draw (kernels/ops.py, `sample`). A row is one thread's.
//
// A token's weight is exp(tempered logit - largest) in units of 2**-34, rounded to a whole number, as in kernels/reference/sampling.py: so
// all sums are exact, in any order. Filters are thresholds: min_p and top_k of tempered logits, top_p of weights. A block of tokens
// that are all below the threshold of logits, or too far below the largest to weigh anything, is not looked at again.
#include "logits.h"
#include "octavo.h"
#include "philox.h"

enum { UNIT_BITS = 34 };
static const float WEIGHTLESS = -25.0f; // exp of it is less than half a unit

typedef struct {
    row_t row;
    float temperature;
    float largest; // tempered
    float least; // tempered logits below it have no weight
    float *weights; // of the blocks that have any
    double *block_sums; // of weights
} draw_t;

// e**x in units of 2**-34, rounded to whole ones (ties to even), for x of at most 0. As v_exp, but for the unit.
INLINE vec weigh(vec x) {
    const vec rounder = x_set(0x1.8p23f); // a sum with it is a whole number, which its lowest bits hold
    x = x_max(x_set(2.0f * WEIGHTLESS), x);
    const vec shifted = x * x_set(1.44269504088896341f) + rounder, n = shifted - rounder;
    const vec r = EXP_REST(x_fma, x_set, n, x), p = EXP_OF_REST(x_fma, x_set, r);
    return x_rint((vec)((x_int)p + (((x_int)shifted + UNIT_BITS) << 23)));
}

// Fills in the weights and their sums; returns the sum of all.
static double sum_weights(const draw_t *draw) {
    const row_t *row = &draw->row;
    const vec temperature = x_set(draw->temperature), largest = x_set(draw->largest), least = x_set(draw->least);
    double total = 0.0;
    for (int64_t block = 0; block < num_blocks(row->size); block++) {
        doubles sums = {0};
        if (block_largest(row, block) / draw->temperature >= draw->least) {
            for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i += WIDTH) {
                const vec x = load(row, i) / temperature;
                const vec weights = x_where_at_least(weigh(x - largest), x, least);
                x_store(draw->weights + i, weights);
                sums = x_add_doubles(sums, weights);
            }
        }
        total += draw->block_sums[block] = d_sum(sums);
    }
    return total;
}

// The least weight of the nucleus: those from it up reach the share of the total, those above it do not.
static float nucleus_threshold(const draw_t *draw, double total, double share, float *list, double *bucket_sums) {
    const double needed = total * share;
    // Tokens of less than an equal part of what may be left out cannot be in it. (A little less, for the rounding of these sums.)
    const double outside = 0.999 * (total - needed) / (double)draw->row.size;
    const float least = outside > 1.0 ? (float)outside : 1.0f;
    int64_t size = 0;
    for (int64_t block = 0; block < num_blocks(draw->row.size); block++) {
        if (draw->block_sums[block] >= least) size += keep_between(draw->weights + block * BLOCK, BLOCK, least, INFINITY, list + size);
    }
    return threshold(list, size, needed, BY_VALUE, bucket_sums);
}

// Brings the sums down to those of the weights that are at least `least`; returns the sum of all.
static double sum_from(const draw_t *draw, float least) {
    double total = 0.0;
    for (int64_t block = 0; block < num_blocks(draw->row.size); block++) {
        doubles sums = {0};
        if (draw->block_sums[block] >= least) {
            for (int64_t i = block * BLOCK; i < (block + 1) * BLOCK; i += WIDTH) {
                const vec weights = x_load(draw->weights + i);
                sums = x_add_doubles(sums, x_where_at_least(weights, weights, x_set(least)));
            }
        }
        total += draw->block_sums[block] = d_sum(sums);
    }
    return total;
}

// The first token at which the sum of the weights so far, of those that are at least `least`, exceeds the target, which is below the total.
static int64_t locate(const draw_t *draw, float least, double target) {
    double sum = 0.0;
    int64_t block = 0;
    while (sum + draw->block_sums[block] <= target) sum += draw->block_sums[block++];
    int64_t i = block * BLOCK - 1;
    while (sum <= target) {
        const float weight = draw->weights[++i];
        if (weight >= least) sum += weight;
    }
    return i;
}

static int64_t sample_row(worker_t *worker, const sample_args_t *args, int64_t r) {
    const int64_t size = args->vocab_size, blocks = num_blocks(size), room = blocks * BLOCK;
    float *memory = scratch(worker, (size_t)blocks * (sizeof(vec) + sizeof(double)) + (size_t)(2 * room + WIDTH) * sizeof(float) +
                                        NUM_BUCKETS * sizeof(double));
    draw_t draw = {.row = {args->logits + r * size, size, (vec *)memory}, .temperature = args->temperature[r]};
    const int64_t best = find_largest(&draw.row);
    if (best < 0 || draw.temperature == 0.0f) return best;
    draw.largest = draw.row.logits[best] / draw.temperature;
    if (!isfinite(draw.largest)) return best; // the temperature is so low that nothing else could be drawn
    double *bucket_sums = (double *)(draw.row.maxima + blocks);
    draw.block_sums = bucket_sums + NUM_BUCKETS;
    draw.weights = (float *)(draw.block_sums + blocks);
    float *list = draw.weights + room;

    draw.least = draw.largest + fmaxf(args->log_min_p[r], WEIGHTLESS);
    const int64_t top_k = args->top_k[r];
    // Of the logits themselves: division by the temperature keeps their order.
    if (top_k > 0 && top_k < size) draw.least = fmaxf(draw.least, kth_largest(&draw.row, top_k, list, bucket_sums) / draw.temperature);
    double total = sum_weights(&draw);
    float least_weight = 1.0f;
    if (args->top_p[r] < 1.0) {
        least_weight = nucleus_threshold(&draw, total, args->top_p[r], list, bucket_sums);
        total = sum_from(&draw, least_weight);
    }
    const double number = philox_uniform(args->seeds[r], args->sample_indices[r], args->positions[r]);
    return locate(&draw, least_weight, fmin(number * total, nextafter(total, 0.0)));
}

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const sample_args_t *args = context;
    (void)step, (void)num_threads;
    return phase ? 0 : args->num_rows;
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const sample_args_t *args = context;
    args->out[item] = sample_row(worker, args, item);
    (void)num_threads, (void)phase;
}

const kernel_t sample_kernel = {count, run};
