// Log probabilities of each row of logits (kernels/ops.py, `logprobs`): of one token, with its rank, and of the most probable ones. A row
// is one thread's.
#include "logits.h"
#include "octavo.h"
#include "threshold.h"

static int64_t count_above(const row_t *row, float logit) {
    int64_t above = 0;
    for (int64_t i = 0; i < row->size; i += LANES) above += __builtin_popcount((unsigned)v_bits(load(row, i) > logit));
    return above;
}

// The k largest logits, largest first, and of equals the smaller id first. The list is long enough for the whole row.
static void find_top(const row_t *row, int64_t k, list_t *list, int32_t *ids, float *values) {
    list->size = 0;
    for (float depth = SHORT_LIST; list->size < k && depth < LONGEST_LIST; depth *= LONGER_LIST) collect(row, row->largest - depth, list);
    if (list->size < k) collect(row, -INFINITY, list);
    const float threshold = weight_threshold(list->x, NULL, list->size, (double)k, list->sums);
    int64_t num_equals = k;
    for (int64_t i = 0; i < list->size; i++) num_equals -= list->x[i] > threshold;
    int64_t found = 0;
    for (int64_t i = 0; i < list->size && found < k; i++) {
        const float x = list->x[i];
        if (x < threshold || (x == threshold && num_equals-- <= 0)) continue;
        int64_t place = found++;
        for (; place > 0 && values[place - 1] < x; place--) values[place] = values[place - 1], ids[place] = ids[place - 1];
        values[place] = x;
        ids[place] = list->ids[i];
    }
}

static void logprobs_of_row(worker_t *worker, const logprobs_args_t *args, int64_t r) {
    row_t row = {.logits = args->logits + r * args->vocab_size, .size = args->vocab_size, .temperature = 1.0f, .floor = -INFINITY};
    int32_t *ids = args->top_ids + r * args->most;
    int32_t *ranks = args->top_ranks + r * args->most;
    float *values = args->top_values + r * args->most;
    const int64_t best = find_largest(&row), num_top = args->num_top[r];
    args->ranks[r] = 1;
    if (best < 0) {
        args->chosen[r] = NAN;
        for (int64_t i = 0; i < num_top; i++) ids[i] = (int32_t)i, ranks[i] = 1, values[i] = NAN;
        return;
    }
    row.largest = row.logits[best];
    const double log_sum = log(sum_weights(&row, NULL, NULL));
    const float logit = row.logits[args->token_ids[r]];
    args->chosen[r] = (float)((double)(logit - row.largest) - log_sum);
    args->ranks[r] = 1 + count_above(&row, logit);
    if (!num_top) return;

    const size_t room = (size_t)row.size * sizeof(float);
    uint8_t *memory = scratch(worker, NUM_DIGITS * sizeof(double) + 2 * room);
    list_t list = {.sums = (double *)memory, .x = (float *)(memory + NUM_DIGITS * sizeof(double))};
    list.ids = (int32_t *)(list.x + row.size);
    find_top(&row, num_top, &list, ids, values);
    for (int64_t i = 0; i < num_top; i++) ranks[i] = i && values[i] == values[i - 1] ? ranks[i - 1] : (int32_t)i + 1;
    for (int64_t i = 0; i < num_top; i++) values[i] = (float)((double)(values[i] - row.largest) - log_sum);
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
