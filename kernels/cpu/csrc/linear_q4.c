// Codes of up to 4 bits, unsigned; activations of 8 bits, of 16 in groups that stand out.
#include "quantized.h"

void linear_q4_tiles(const step_t *step, const linear_args_t *args, span_t tiles) { quantized_tiles(WEIGHT_Q4, step, args, tiles); }
