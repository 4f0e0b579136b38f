// The token of each row of logits: temperature, min_p, top_k, top_p and one draw (kernels/ops.py, `sample`). A row is one thread's.
//
// Filters are thresholds on values. All that they keep is nearly always among the logits close to the largest, so these are put on a
// short list, and only should that turn out not to hold all is the list made anew of the whole row. Either way the result is the same.
#include <float.h>
#include <math.h>

#include "octavo.h"
#include "philox.h"
#include "simd.h"
#include "threshold.h"

enum { BLOCK = 256 }; // tokens whose weights are summed before the sums are

static const float SHORT_LIST = 8.0f; // how far below the largest tempered logit the short list goes
static const float LEAST_EXPONENT = -87.0f; // below it a weight is zero

typedef double v8d __attribute__((vector_size(64)));

typedef struct {
    const float *logits;
    int64_t size;
    float temperature;
    float largest; // tempered
    float floor; // tempered logits below it are out, by min_p
    int64_t top_k; // 0: all
    double top_p;
} row_t;

// Tokens in the order of their ids.
typedef struct {
    float *x; // tempered logits
    float *weights; // exp(x - largest), the softmax but for a factor
    int32_t *ids;
    double *sums; // working space of weight_threshold
    int64_t size;
} list_t;

INLINE int v_bits(v8i mask) {
#ifdef __AVX2__
    return _mm256_movemask_ps((__m256)mask);
#else
    int bits = 0;
    for (int i = 0; i < LANES; i++) bits |= (mask[i] & 1) << i;
    return bits;
#endif
}

INLINE v8f weight(v8f x, float largest) {
    const v8f exponent = x - largest;
    return (v8f)((v8i)v_exp(exponent) & (exponent >= LEAST_EXPONENT));
}

INLINE double sum_lanes(v8d x) { return ((x[0] + x[1]) + (x[2] + x[3])) + ((x[4] + x[5]) + (x[6] + x[7])); }

// Logits [i, i + 8), -infinity past the end.
INLINE v8f load(const row_t *row, int64_t i) {
    if (i + LANES <= row->size) return v_load(row->logits + i);
    v8f x = v_set(-INFINITY);
    for (int64_t j = 0; i + j < row->size; j++) x[j] = row->logits[i + j];
    return x;
}

// The first of the largest logits; -1 if that is not finite, or if one is not a number.
static int64_t find_largest(const row_t *row) {
    v8f best = v_set(-INFINITY);
    v8i bad = (v8i)v_set(0.0f);
    for (int64_t i = 0; i < row->size; i += LANES) {
        const v8f x = load(row, i);
        bad |= x != x;
        best = v_max(best, x);
    }
    const float largest = v_max_lane(best);
    if (v_bits(bad) || !isfinite(largest)) return -1;
    for (int64_t i = 0; i < row->size; i += LANES) {
        const int found = v_bits(load(row, i) == largest);
        if (found) return i + __builtin_ctz((unsigned)found);
    }
    return -1;
}

// Sums the weights of all tokens that min_p keeps. If asked for, stores them, and the sum of each block.
static double sum_weights(const row_t *row, float *weights, double *block_sums) {
    double total = 0.0;
    for (int64_t begin = 0; begin < row->size; begin += BLOCK) {
        const int64_t end = begin + BLOCK < row->size ? begin + BLOCK : row->size;
        v8d sum = {0};
        for (int64_t i = begin; i < end; i += LANES) {
            const v8f x = load(row, i) / row->temperature;
            const v8f w = (v8f)((v8i)weight(x, row->largest) & (x >= row->floor));
            sum += __builtin_convertvector(w, v8d);
            if (weights) v_store(weights + i, w);
        }
        const double block = sum_lanes(sum);
        if (block_sums) block_sums[begin / BLOCK] = block;
        total += block;
    }
    return total;
}

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

// Puts the tokens whose tempered logit is at least `least` on the list.
static void collect(const row_t *row, float least, list_t *list) {
    list->size = 0;
    for (int64_t i = 0; i < row->size; i += LANES) {
        const v8f x = load(row, i) / row->temperature;
        for (int found = v_bits(x >= least); found; found &= found - 1) {
            const int lane = __builtin_ctz((unsigned)found);
            list->x[list->size] = x[lane];
            list->ids[list->size++] = (int32_t)(i + lane);
        }
    }
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
    const float least = fmaxf(row->floor, row->largest - SHORT_LIST);
    if (!filter(row, least, least == row->floor, list)) filter(row, fmaxf(row->floor, -FLT_MAX), 1, list);
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
