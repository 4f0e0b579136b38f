// Codes of 5 to 8 bits, signed; activations of 16 bits, so that what is lost is lost in the weights alone.
#include "quantized.h"

void linear_q8_tiles(const step_t *step, const linear_args_t *args, span_t tiles) { quantized_tiles(WEIGHT_Q8, step, args, tiles); }
