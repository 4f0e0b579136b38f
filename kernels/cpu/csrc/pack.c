// Brings a matrix as a checkpoint stores it into the tiles that the products read (quantized.h). Done once, at load.
#include "quantized.h"

// Output features past the last one become zeros.
static void pack_tile_of_4_bytes(const pack_args_t *pack, int64_t tile) {
    const int64_t in = pack->weight->in_features;
    uint32_t *panel = (uint32_t *)pack->weight->data + tile * in * TILE;
    for (int64_t c = 0; c < TILE; c++) {
        const int64_t row = tile * TILE + c;
        const uint32_t *values = (const uint32_t *)pack->values + row * in;
        for (int64_t k = 0; k < in; k++) panel[k * TILE + c] = row < pack->weight->out_features ? values[k] : 0;
    }
}

static void pack_tile_of_2_bytes(const pack_args_t *pack, int64_t tile) {
    const int64_t in = pack->weight->in_features;
    uint16_t *panel = (uint16_t *)pack->weight->data + tile * in * TILE;
    for (int64_t c = 0; c < TILE; c++) {
        const int64_t row = tile * TILE + c;
        const uint16_t *values = (const uint16_t *)pack->values + row * in;
        for (int64_t k = 0; k < in; k++) panel[k * TILE + c] = row < pack->weight->out_features ? values[k] : 0;
    }
}

static void put_scale(uint8_t *out, int64_t index, float value, int32_t scale_bytes) {
    if (scale_bytes == 2) ((uint16_t *)out)[index] = float_to_half(value);
    else ((float *)out)[index] = value;
}

static void pack_group_q4(uint8_t *out, const int8_t *codes, int64_t column, int32_t group_size, int32_t offset) {
    for (int32_t j = 0; j < group_size / 8; j++)
        for (int32_t i = 0; i < 4; i++) {
            const int32_t low = codes[4 * j + i] + offset, high = codes[4 * j + i + group_size / 2] + offset;
            out[64 * j + 4 * column + i] = (uint8_t)(low | high << 4);
        }
}

static void pack_group_q8(uint8_t *out, const int8_t *codes, int64_t column, int32_t group_size, int32_t offset) {
    for (int32_t j = 0; j < group_size / 2; j++)
        for (int32_t i = 0; i < 2; i++) out[32 * j + 2 * column + i] = (uint8_t)(codes[2 * j + i] + offset);
}

static void pack_tile_quantized(const pack_args_t *pack, int64_t tile) {
    const weight_t *weight = pack->weight;
    const int32_t group_size = weight->group_size;
    const int64_t groups = weight->in_features / group_size;
    uint8_t *out = (uint8_t *)weight->data + tile * groups * weight->group_bytes;
    memset(out, 0, (size_t)(groups * weight->group_bytes));
    for (int64_t c = 0; c < TILE && tile * TILE + c < weight->out_features; c++) {
        const int64_t row = tile * TILE + c;
        const int8_t *codes = (const int8_t *)pack->values + row * weight->in_features;
        for (int64_t g = 0; g < groups; g++) {
            uint8_t *group = out + g * weight->group_bytes, *behind = group + code_bytes_of_group(weight->form, group_size);
            if (weight->form == WEIGHT_Q4) pack_group_q4(group, codes + g * group_size, c, group_size, pack->offset);
            else pack_group_q8(group, codes + g * group_size, c, group_size, pack->offset);
            put_scale(behind, c, pack->scales[row * groups + g], weight->scale_bytes);
            if (pack->mins) put_scale(behind + TILE * weight->scale_bytes, c, pack->mins[row * groups + g], weight->scale_bytes);
        }
    }
}

static int64_t num_tiles(const pack_args_t *pack) { return ((int64_t)pack->weight->out_features + TILE - 1) / TILE; }

static int64_t count(const step_t *step, const void *context, int32_t num_threads, int32_t phase) {
    (void)step;
    return phase ? 0 : num_spans(num_tiles(context), num_threads, 4);
}

static void run(worker_t *worker, const void *context, int32_t num_threads, int32_t phase, int64_t item) {
    const pack_args_t *pack = context;
    const span_t tiles = span_of(item, num_tiles(pack), num_threads, 4);
    for (int64_t tile = tiles.begin; tile < tiles.end; tile++) {
        if (pack->weight->group_size) pack_tile_quantized(pack, tile);
        else if (pack->weight->form == WEIGHT_F32) pack_tile_of_4_bytes(pack, tile);
        else pack_tile_of_2_bytes(pack, tile);
    }
    (void)worker, (void)phase;
}

const kernel_t pack_kernel = {count, run};
