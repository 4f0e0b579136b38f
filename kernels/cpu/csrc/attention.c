// Attention over a paged cache, with a streamed softmax (Milakov and Gimelshein, 2018; Kwon et al., 2023).
//
// Keys are taken in tiles of 64 by absolute position, tiles in segments of 256; a query's softmax runs through the tiles of a segment, and
// the segments' results are merged in order. This order is the query's own: it is the same for a decode and inside a prefill chunk, on one
// thread and on many, so the result has the same bits. Queries of one kv head, of several rows in a prefill, share each tile's loads.
// Working memory is that of one tile and one group of queries, however long the context is.
#include "attention_tile.h"

enum {
    SEGMENT = 256, // keys; a multiple of TILE_KEYS
    WAVE = 32, // segments whose results are held at once when contexts are split over threads
};

// ---- Segments ----------------------------------------------------------------------------------------------------------------------

// Adds a segment's result to a total. An empty total takes it as it is.
static void merge(float *total_sums, float *total_top, float *total_weight, const float *sums, float top, float weight, int64_t n) {
    if (weight == 0.0f) return;
    if (*total_weight == 0.0f) {
        memcpy(total_sums, sums, (size_t)n * sizeof(float));
        *total_top = top;
        *total_weight = weight;
        return;
    }
    const float new_top = *total_top > top ? *total_top : top;
    const float keep = v_exp(v_set(*total_top - new_top))[0], take = v_exp(v_set(top - new_top))[0];
    for (int64_t i = 0; i < n; i += LANES) v_store(total_sums + i, v_fma(v_load(sums + i), v_set(take), v_load(total_sums + i) * keep));
    *total_top = new_top;
    *total_weight = *total_weight * keep + weight * take;
}

// The group's softmax over one segment, from its start to its end.
static void attend_segment(const kv_t *kv, const int32_t *block_table, int32_t kv_head, int32_t segment, group_t *group) {
    const int32_t low = clamp(group->first[0], segment, segment + SEGMENT);
    const int32_t end = group->last[group->count - 1], high = clamp(end, segment, segment + SEGMENT);
    start_segment(group);
    const int32_t first = low / TILE_KEYS * TILE_KEYS;
    find_keys(kv, block_table, kv_head, first, low - first, clamp(high - first, 0, TILE_KEYS), group->next_keys);
    for (int32_t tile = first; tile < high; tile += TILE_KEYS) {
        load_tile(kv, clamp(low - tile, 0, TILE_KEYS), clamp(high - tile, 0, TILE_KEYS), group);
        find_keys(kv, block_table, kv_head, tile + TILE_KEYS, 0, clamp(end - tile - TILE_KEYS, 0, TILE_KEYS), group->next_keys);
        attend_tile(group, tile);
    }
    end_segment(group);
}

static void write_out(const attention_args_t *args, int64_t token, int32_t kv_head, int32_t q, int32_t heads, const float *sums, float weight) {
    const kv_t *kv = &args->kv;
    const int64_t head = (token + q / heads) * kv->num_heads + kv_head * heads + q % heads;
    float *out = args->out + head * kv->head_size;
    v_scale(out, sums, 1.0f / weight, kv->head_size);
    if (kv->element == KV_I8) hadamard(out, out, kv->head_size); // back from where the values are
}

// A few rows of one sequence and one kv head, over their whole context.
static void attend_item(const attention_args_t *args, const step_t *step, int32_t seq, int32_t kv_head, int32_t row, int32_t rows,
                        group_t *group) {
    const int32_t start = step->query_start_loc[seq];
    const int32_t query_len = step->query_start_loc[seq + 1] - start;
    const int32_t *block_table = step->block_tables + (int64_t)seq * step->block_table_stride;
    load_queries(args, start + row, rows, step->seq_lens[seq] - query_len + row, kv_head, group);
    const int32_t end = group->last[group->count - 1];
    for (int32_t segment = group->first[0] / SEGMENT * SEGMENT; segment < end; segment += SEGMENT) {
        attend_segment(&args->kv, block_table, kv_head, segment, group);
        for (int32_t q = 0; q < group->count; q++) {
            const int64_t at = q * group->padded;
            merge(group->total_sums + at, &group->total_top[q], &group->total_weight[q], group->sums + at, group->top[q], group->weight[q],
                  group->padded);
        }
    }
    for (int32_t q = 0; q < group->count; q++)
        write_out(args, start + row, kv_head, q, group->heads, group->total_sums + q * group->padded, group->total_weight[q]);
}

// Which rows of which sequence an item is: a kv head of a chunk of rows. Of a prefill the last chunk, which sees the most keys, goes first,
// so that threads end together.
static void attend_whole(worker_t *worker, const attention_args_t *args, int64_t item) {
    const step_t *step = worker->step;
    const int32_t rows_each = rows_per_item(&args->kv), kv_heads = args->kv.num_kv_heads;
    int32_t seq = 0, query_len;
    for (;; seq++) {
        query_len = step->query_start_loc[seq + 1] - step->query_start_loc[seq];
        const int64_t items = (int64_t)((query_len + rows_each - 1) / rows_each) * kv_heads;
        if (item < items) break;
        item -= items;
    }
    const int32_t chunks = (query_len + rows_each - 1) / rows_each;
    const int32_t row = (chunks - 1 - (int32_t)(item / kv_heads)) * rows_each;
    const int32_t rows = query_len - row < rows_each ? query_len - row : rows_each;
    group_t group;
    make_group(worker, &args->kv, &group);
    attend_item(args, step, seq, (int32_t)(item % kv_heads), row, rows, &group);
}

static int64_t count_whole(const step_t *step, const kv_t *kv) {
    const int32_t rows_each = rows_per_item(kv);
    int64_t items = 0;
    for (int32_t seq = 0; seq < step->num_seqs; seq++)
        items += (step->query_start_loc[seq + 1] - step->query_start_loc[seq] + rows_each - 1) / rows_each;
    return items * kv->num_kv_heads;
}

// ---- Few decodes with long contexts: segments are divided among the threads ---------------------------------------------------------

// A partial result: top, weight and padded sums, of one head. Per item: the total of each head, then WAVE segments of each head.
static int64_t partial_floats(const kv_t *kv) { return padded_size(kv) + LANES; }

static int64_t item_floats(const kv_t *kv) { return (WAVE + 1) * heads_per_kv_head(kv) * partial_floats(kv); }

static int64_t most_split_items(int64_t threads) { return 4 * threads - 1; }

int64_t octavo_attention_partials_floats(const kv_t *kv, int32_t num_threads) { return most_split_items(num_threads) * item_floats(kv); }

static int splits(const step_t *step, const kv_t *kv, int32_t num_threads) {
    return num_threads > 1 && step->max_query_len == 1 && step->max_seq_len > 2 * SEGMENT &&
           (int64_t)step->num_seqs * kv->num_kv_heads <= most_split_items(num_threads);
}

// Segments of a wave: all but the last have WAVE.
static int64_t segments_in_wave(const step_t *step, int32_t wave) {
    const int64_t left = (step->max_seq_len + SEGMENT - 1) / SEGMENT - (int64_t)wave * WAVE;
    return left < WAVE ? left : WAVE;
}

// One segment of one item, into its place among the partials.
static void attend_part(const attention_args_t *args, const step_t *step, int32_t seq, int32_t kv_head, int32_t segment, float *partial,
                        group_t *group) {
    const int64_t size = partial_floats(&args->kv);
    const int32_t rows = step->query_start_loc[seq + 1] - step->query_start_loc[seq]; // 0 or 1
    for (int32_t q = 0; q < group->heads; q++) partial[q * size + 1] = 0.0f;
    if (rows == 0 || segment >= step->seq_lens[seq]) return;
    load_queries(args, step->query_start_loc[seq], 1, step->seq_lens[seq] - 1, kv_head, group);
    attend_segment(&args->kv, step->block_tables + (int64_t)seq * step->block_table_stride, kv_head, segment, group);
    for (int32_t q = 0; q < group->heads; q++) {
        partial[q * size] = group->top[q];
        partial[q * size + 1] = group->weight[q];
        memcpy(partial + q * size + LANES, group->sums + q * group->padded, (size_t)group->padded * sizeof(float));
    }
}

// The totals of one head of one item take in the wave's segments, in order.
static void merge_wave(const attention_args_t *args, const step_t *step, int32_t wave, int64_t index) {
    const kv_t *kv = &args->kv;
    const int64_t size = partial_floats(kv), heads = heads_per_kv_head(kv), item = index / heads, head = index % heads;
    const int64_t segments = segments_in_wave(step, wave);
    const int32_t seq = (int32_t)(item / kv->num_kv_heads), kv_head = (int32_t)(item % kv->num_kv_heads);
    float *total = args->partials + item * item_floats(kv) + head * size;
    if (wave == 0) total[1] = 0.0f;
    for (int64_t slot = 0; slot < segments; slot++) {
        const float *part = total + (1 + slot) * heads * size;
        merge(total + LANES, &total[0], &total[1], part + LANES, part[0], part[1], padded_size(kv));
    }
    const int is_last = (int64_t)(wave + 1) * WAVE * SEGMENT >= step->max_seq_len;
    if (is_last && step->query_start_loc[seq + 1] > step->query_start_loc[seq])
        write_out(args, step->query_start_loc[seq], kv_head, (int32_t)head, (int32_t)heads, total + LANES, total[1]);
}

static void attend_segment_of_wave(worker_t *worker, const attention_args_t *args, int32_t wave, int64_t index) {
    const kv_t *kv = &args->kv;
    const int64_t segments = segments_in_wave(worker->step, wave), item = index / segments, slot = index % segments;
    float *partial = args->partials + item * item_floats(kv) + (1 + slot) * heads_per_kv_head(kv) * partial_floats(kv);
    group_t group;
    make_group(worker, kv, &group);
    attend_part(args, worker->step, (int32_t)(item / kv->num_kv_heads), (int32_t)(item % kv->num_kv_heads),
                (wave * WAVE + (int32_t)slot) * SEGMENT, partial, &group);
}

// ---- The operation: one phase, or for split contexts two per wave: segments, then merges ---------------------------------------------

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    const attention_args_t *args = context;
    if (!splits(step, &args->kv, num_threads)) return phase ? 0 : count_whole(step, &args->kv);
    const int64_t segments = segments_in_wave(step, phase / 2);
    if (segments <= 0) return 0;
    return (int64_t)step->num_seqs * (phase % 2 ? args->kv.num_heads : args->kv.num_kv_heads * segments);
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const attention_args_t *args = context;
    if (!splits(worker->step, &args->kv, num_threads)) attend_whole(worker, args, item);
    else if (phase % 2) merge_wave(args, worker->step, phase / 2, item);
    else attend_segment_of_wave(worker, args, phase / 2, item);
}

const kernel_t attention_kernel = {count, run};
