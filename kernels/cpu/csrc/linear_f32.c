// x @ weight.T in float32. An output is one chain of fused multiply-adds over the input features in order, whatever the tile: its bits
// do not depend on the other rows.
#include "octavo.h"
#include "simd16.h"

INLINE void product(const int rows, const float *x, int64_t in, const float *panel, const float *bias, float *out, int64_t out_stride,
                    int32_t columns) {
    v16f sums[SHARED_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sums[r] = w_set(0.0f);
    for (int64_t k = 0; k < in; k++) {
        const v16f weights = w_load(panel + k * TILE);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) sums[r] = w_fma(w_set(x[r * in + k]), weights, sums[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) w_store_columns(out + r * out_stride, sums[r], bias, columns);
}

static void product_of(int64_t rows, const float *x, int64_t in, const float *panel, const float *bias, float *out, int64_t out_stride,
                       int32_t columns) {
    switch (rows) {
    case 1: product(1, x, in, panel, bias, out, out_stride, columns); break;
    case 2: product(2, x, in, panel, bias, out, out_stride, columns); break;
    case 3: product(3, x, in, panel, bias, out, out_stride, columns); break;
    case 4: product(4, x, in, panel, bias, out, out_stride, columns); break;
    case 5: product(5, x, in, panel, bias, out, out_stride, columns); break;
    case 6: product(6, x, in, panel, bias, out, out_stride, columns); break;
#ifdef WIDE_REGISTERS
    case 7: product(7, x, in, panel, bias, out, out_stride, columns); break;
    case 8: product(8, x, in, panel, bias, out, out_stride, columns); break;
#endif
    }
}

static void rows_by_tile(const linear_args_t *args, int64_t rows, int64_t tile) {
    const weight_t *weight = args->weight;
    const int64_t in = weight->in_features, out = weight->out_features;
    const float *panel = (const float *)weight->data + tile * in * TILE;
    const int32_t columns = out - tile * TILE < TILE ? (int32_t)(out - tile * TILE) : TILE;
    const float *bias = weight->bias ? weight->bias + tile * TILE : NULL;
    for (int64_t r = 0, run; r < rows; r += run) {
        run = rows_in_run(rows - r, SHARED_ROWS);
        product_of(run, args->x + r * in, in, panel, bias, args->out + r * out + tile * TILE, out, columns);
    }
}

void linear_f32_tiles(const step_t *step, const linear_args_t *args, span_t tiles) {
    const int64_t rows = num_rows(step, args->rows);
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) rows_by_tile(args, rows, tile);
}
