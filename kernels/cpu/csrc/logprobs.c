// Log probabilities of each row of logits (kernels/ops.py, `logprobs`): of one token, with its rank, and of the most probable ones. A row
// is one thread's.
#include "logits.h"
#include "octavo.h"

// The logarithm of the sum of all exp(logit - largest).
static double log_sum(const row_t *row, float largest) {
    doubles sums = {0};
    for (int64_t i = 0; i < row->size; i += WIDTH) {
        const vec exponents = load(row, i) - x_set(largest);
        for (int h = 0; h < HALVES; h++) {
            const v8f x = x_half(exponents, h);
            sums = d_add(sums, (v8f)((v8i)v_exp(x) & (x >= -87.0f))); // below it v_exp does not reach zero
        }
    }
    return log(d_sum(sums));
}

static int64_t count_above(const row_t *row, float logit) {
    int64_t above = 0;
    for (int64_t i = 0; i < row->size; i += WIDTH) above += WIDTH - __builtin_popcount(x_at_least(x_set(logit), load(row, i)));
    return above;
}

// The k largest logits, largest first, and of equals the smaller id first. The lists have room for the row and `WIDTH` more.
static void find_top(const row_t *row, int64_t k, float *list, int32_t *list_ids, double *sums, int32_t *ids, float *values) {
    const float least = kth_largest(row, k, list, sums);
    const int64_t size = collect(row, least, list, list_ids);
    int64_t num_equals = k, found = 0;
    for (int64_t i = 0; i < size; i++) num_equals -= list[i] > least;
    for (int64_t i = 0; i < size && found < k; i++) {
        const float x = list[i];
        if (x == least && num_equals-- <= 0) continue;
        int64_t place = found++;
        for (; place > 0 && values[place - 1] < x; place--) values[place] = values[place - 1], ids[place] = ids[place - 1];
        values[place] = x;
        ids[place] = list_ids[i];
    }
}

static void logprobs_of_row(worker_t *worker, const logprobs_args_t *args, int64_t r) {
    const int64_t size = args->vocab_size, num_top = args->num_top[r];
    const size_t room = (size_t)(size + BLOCK) * sizeof(float);
    vec *maxima = scratch(worker, (size_t)num_blocks(size) * sizeof(vec) + NUM_BUCKETS * sizeof(double) + 2 * room);
    const row_t row = {args->logits + r * size, size, maxima};
    int32_t *ids = args->top_ids + r * args->most;
    int32_t *ranks = args->top_ranks + r * args->most;
    float *values = args->top_values + r * args->most;
    const int64_t best = find_largest(&row);
    args->ranks[r] = 1;
    if (best < 0) {
        args->chosen[r] = NAN;
        for (int64_t i = 0; i < num_top; i++) ids[i] = (int32_t)i, ranks[i] = 1, values[i] = NAN;
        return;
    }
    const float largest = row.logits[best], logit = row.logits[args->token_ids[r]];
    const double log_total = log_sum(&row, largest);
    args->chosen[r] = (float)((double)(logit - largest) - log_total);
    args->ranks[r] = 1 + count_above(&row, logit);
    if (!num_top) return;

    double *sums = (double *)(maxima + num_blocks(size));
    float *list = (float *)(sums + NUM_BUCKETS);
    find_top(&row, num_top, list, (int32_t *)(list + room / sizeof(float)), sums, ids, values);
    for (int64_t i = 0; i < num_top; i++) ranks[i] = i && values[i] == values[i - 1] ? ranks[i - 1] : (int32_t)i + 1;
    for (int64_t i = 0; i < num_top; i++) values[i] = (float)((double)(values[i] - largest) - log_total);
}

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const logprobs_args_t *args = context;
    (void)step, (void)num_threads;
    return phase ? 0 : args->num_rows;
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    logprobs_of_row(worker, context, item);
    (void)num_threads, (void)phase;
}

const kernel_t logprobs_kernel = {count, run};
