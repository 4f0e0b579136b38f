// x @ weight.T in float32. An output is one chain of fused multiply-adds over the input features in order, whatever the tile: its bits
// do not depend on the other rows.
#include "octavo.h"
#include "simd.h"

enum { ROWS = 6 }; // rows that share the loads of a tile's weights: 12 sums, 2 weights and 1 input fill 16 registers

INLINE void product(const int rows, const float *x, int64_t in, const float *panel, const float *bias, float *out, int64_t out_stride,
                    int32_t columns) {
    v8f sums[ROWS][2];
    for (int r = 0; r < rows; r++) sums[r][0] = sums[r][1] = v_set(0.0f);
    for (int64_t k = 0; k < in; k++) {
        const v8f w0 = v_load(panel + k * TILE), w1 = v_load(panel + k * TILE + LANES);
#pragma GCC unroll 6
        for (int r = 0; r < rows; r++) {
            const v8f input = v_set(x[r * in + k]);
            sums[r][0] = v_fma(input, w0, sums[r][0]);
            sums[r][1] = v_fma(input, w1, sums[r][1]);
        }
    }
    for (int r = 0; r < rows; r++) {
        float values[TILE];
        v_store(values, sums[r][0]);
        v_store(values + LANES, sums[r][1]);
        for (int32_t c = 0; c < columns; c++) out[r * out_stride + c] = bias ? values[c] + bias[c] : values[c];
    }
}

static void product_of(int64_t rows, const float *x, int64_t in, const float *panel, const float *bias, float *out, int64_t out_stride,
                       int32_t columns) {
    switch (rows) {
    case 1: product(1, x, in, panel, bias, out, out_stride, columns); break;
    case 2: product(2, x, in, panel, bias, out, out_stride, columns); break;
    case 3: product(3, x, in, panel, bias, out, out_stride, columns); break;
    case 4: product(4, x, in, panel, bias, out, out_stride, columns); break;
    case 5: product(5, x, in, panel, bias, out, out_stride, columns); break;
    default: product(6, x, in, panel, bias, out, out_stride, columns); break;
    }
}

void run_linear_f32(worker_t *worker, const linear_args_t *args) {
    const weight_t *weight = args->weight;
    const int64_t in = weight->in_features, out = weight->out_features;
    const int64_t rows = num_rows(worker, args->rows), tiles = (out + TILE - 1) / TILE;
    for (int64_t tile; (tile = next_item(worker)) < tiles;) {
        const float *panel = (const float *)weight->data + tile * in * TILE;
        const int32_t columns = out - tile * TILE < TILE ? (int32_t)(out - tile * TILE) : TILE;
        const float *bias = weight->bias ? weight->bias + tile * TILE : NULL;
        for (int64_t r = 0; r < rows; r += ROWS) {
            const int64_t n = rows - r < ROWS ? rows - r : ROWS;
            product_of(n, args->x + r * in, in, panel, bias, args->out + r * out + tile * TILE, out, columns);
        }
    }
}
