// The token of each row of logits: temperature, min_p, top_k, top_p and one draw (kernels/ops.py, `sample`). A row is one thread's.
//
// Filters are thresholds on values. All that they keep is nearly always among the logits close to the largest, so these are put on a
// short list, and only should that turn out not to hold all is a longer one made, at last of the whole row. The result is the same.
#include <float.h>
#include <math.h>

#include "logits.h"
#include "octavo.h"
#include "philox.h"
#include "threshold.h"

// The first place at which the weights so far, `sum` included, exceed the target; the last one of any weight if rounding leaves none.
static int64_t locate(const float *weights, int64_t size, double sum, double target) {
    int64_t last = -1;
    for (int64_t i = 0; i < size; i++) {
        if (weights[i] == 0.0f) continue;
        last = i;
        sum += weights[i];
        if (sum > target) return i;
    }
    return last;
}

static int64_t draw_unfiltered(const row_t *row, float *weights, double *block_sums, double number) {
    const double total = sum_weights(row, weights, block_sums);
    const double target = fmin(number * total, nextafter(total, 0.0));
    double before = 0.0;
    int64_t block = 0;
    while (before + block_sums[block] <= target) before += block_sums[block++]; // ends: the sums add up to the total
    const int64_t begin = block * BLOCK;
    return begin + locate(weights + begin, row->size - begin < BLOCK ? row->size - begin : BLOCK, before, target);
}

static void drop_below(list_t *list, const float *values, float threshold) {
    int64_t kept = 0;
    for (int64_t i = 0; i < list->size; i++) {
        const float value = values[i];
        list->x[kept] = list->x[i];
        list->weights[kept] = list->weights[i];
        list->ids[kept] = list->ids[i];
        kept += value >= threshold;
    }
    list->size = kept;
}

// Makes the list of what the filters keep out of the tokens with a tempered logit of at least `least`. False if it may lack some:
// `is_complete` says that it has all that min_p keeps.
static int filter(const row_t *row, float least, int is_complete, list_t *list) {
    collect(row, least, list);
    if (row->top_k) {
        if (list->size < row->top_k && !is_complete) return 0;
        if (list->size > row->top_k) drop_below(list, list->x, weight_threshold(list->x, NULL, list->size, (double)row->top_k, list->sums));
        is_complete = 1;
    }
    for (int64_t i = 0; i < list->size; i += LANES) {
        if (i + LANES <= list->size) v_store(list->weights + i, weight(v_load(list->x + i), row->largest));
        else v_store_part(list->weights + i, weight(v_load_part(list->x + i, list->size - i), row->largest), list->size - i);
    }
    if (row->top_p >= 1.0) return is_complete;
    double listed = 0.0;
    for (int64_t i = 0; i < list->size; i++) listed += list->weights[i];
    const double needed = row->top_p * (is_complete ? listed : sum_weights(row, NULL, NULL));
    if (listed < needed && !is_complete) return 0;
    const float threshold = weight_threshold(list->weights, list->weights, list->size, needed, list->sums);
    // Equals of the last of the nucleus may be missing where it is the last of the list too.
    if (!is_complete && threshold <= weight(v_set(least), row->largest)[0]) return 0;
    drop_below(list, list->weights, threshold);
    return 1;
}

static int64_t draw_filtered(const row_t *row, list_t *list, double number) {
    float depth = SHORT_LIST;
    for (; depth < LONGEST_LIST; depth *= LONGER_LIST) {
        const float least = fmaxf(row->floor, row->largest - depth);
        if (filter(row, least, least == row->floor, list)) break;
    }
    if (depth >= LONGEST_LIST) filter(row, fmaxf(row->floor, -FLT_MAX), 1, list);
    double total = 0.0;
    for (int64_t i = 0; i < list->size; i++) total += list->weights[i];
    const int64_t place = locate(list->weights, list->size, 0.0, fmin(number * total, nextafter(total, 0.0)));
    return list->ids[place];
}

static int64_t sample_row(worker_t *worker, const sample_args_t *args, int64_t r) {
    row_t row = {.logits = args->logits + r * args->vocab_size, .size = args->vocab_size, .temperature = args->temperature[r]};
    const int64_t best = find_largest(&row);
    if (best < 0 || row.temperature == 0.0f) return best;
    row.largest = row.logits[best] / row.temperature;
    if (!isfinite(row.largest)) return best; // the temperature is so low that nothing else could be drawn
    row.floor = row.largest + args->log_min_p[r];
    row.top_k = args->top_k[r] < row.size ? args->top_k[r] : 0;
    row.top_p = args->top_p[r];

    // The blocks' sums share their place with the thresholds' working space.
    const size_t room = ((size_t)row.size + LANES) * sizeof(float), num_blocks = (size_t)row.size / BLOCK + 1;
    const size_t num_sums = (num_blocks > NUM_DIGITS ? num_blocks : NUM_DIGITS) + 8;
    uint8_t *memory = scratch(worker, 3 * room + num_sums * sizeof(double) + 64);
    list_t list = {.sums = (double *)memory};
    list.x = (float *)(list.sums + num_sums);
    list.weights = list.x + room / sizeof(float);
    list.ids = (int32_t *)(list.weights + room / sizeof(float));
    const double number = philox_uniform(args->seeds[r], args->sample_indices[r], args->positions[r]);
    const int is_filtered = row.top_k || row.top_p < 1.0 || row.floor >= row.largest - SHORT_LIST;
    return is_filtered ? draw_filtered(&row, &list, number) : draw_unfiltered(&row, list.weights, list.sums, number);
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
