// x @ weight.T in float32, with weights of float32, float16 or bfloat16. An output is one chain of fused multiply-adds over the input features in order, whatever the tile: its bits
// do not depend on the other rows.
#include "octavo.h"
#include "simd16.h"

enum { STREAM_AHEAD = 2048 }; // bytes

// Sixteen weights of a panel, from element k on.
INLINE v16f load_weights(const int form, const void *panel, int64_t k) {
    if (form == WEIGHT_F32) return w_load((const float *)panel + k);
    if (form == WEIGHT_F16) return w_load_half((const uint16_t *)panel + k);
    return w_load_bfloat((const uint16_t *)panel + k);
}

INLINE void product(const int form, const int rows, const float *x, int64_t in, const void *panel, const float *bias, float *out,
                    int64_t out_stride, int32_t columns) {
    v16f sums[SHARED_ROWS];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) sums[r] = w_set(0.0f);
    for (int64_t k = 0; k < in; k++) {
        const v16f weights = load_weights(form, panel, k * TILE);
        v_prefetch((const uint8_t *)panel + k * TILE * (form == WEIGHT_F32 ? 4 : 2) + STREAM_AHEAD);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) sums[r] = w_fma(w_set(x[r * in + k]), weights, sums[r]);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++) w_store_columns(out + r * out_stride, sums[r], bias, columns);
}

INLINE void product_of(const int form, int64_t rows, const float *x, int64_t in, const void *panel, const float *bias, float *out,
                       int64_t out_stride, int32_t columns) {
    switch (rows) {
    case 1: product(form, 1, x, in, panel, bias, out, out_stride, columns); break;
    case 2: product(form, 2, x, in, panel, bias, out, out_stride, columns); break;
    case 3: product(form, 3, x, in, panel, bias, out, out_stride, columns); break;
    case 4: product(form, 4, x, in, panel, bias, out, out_stride, columns); break;
    case 5: product(form, 5, x, in, panel, bias, out, out_stride, columns); break;
    case 6: product(form, 6, x, in, panel, bias, out, out_stride, columns); break;
#ifdef WIDE_REGISTERS
    case 7: product(form, 7, x, in, panel, bias, out, out_stride, columns); break;
    case 8: product(form, 8, x, in, panel, bias, out, out_stride, columns); break;
#endif
    }
}

INLINE void rows_by_tile(const int form, const linear_args_t *args, int64_t rows, int64_t tile) {
    const weight_t *weight = args->weight;
    const int64_t in = weight->in_features, out = weight->out_features;
    const uint8_t *panel = (const uint8_t *)weight->data + tile * in * TILE * (form == WEIGHT_F32 ? 4 : 2);
    const int32_t columns = out - tile * TILE < TILE ? (int32_t)(out - tile * TILE) : TILE;
    const float *bias = weight->bias ? weight->bias + tile * TILE : NULL;
    for (int64_t r = 0, run; r < rows; r += run) {
        run = rows_in_run(rows - r, SHARED_ROWS);
        product_of(form, run, args->x + r * in, in, panel, bias, args->out + r * out + tile * TILE, out, columns);
    }
}

INLINE void float_tiles(const int form, const step_t *step, const linear_args_t *args, span_t tiles) {
    const int64_t rows = num_rows(step, args->rows);
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) rows_by_tile(form, args, rows, tile);
}

void linear_float_tiles(const step_t *step, const linear_args_t *args, span_t tiles) {
    if (args->weight->form == WEIGHT_F32) float_tiles(WEIGHT_F32, step, args, tiles);
    else if (args->weight->form == WEIGHT_F16) float_tiles(WEIGHT_F16, step, args, tiles);
    else float_tiles(WEIGHT_BF16, step, args, tiles);
}
