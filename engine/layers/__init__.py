"""The parts that models are made of: each holds packed weights and calls `kernels.ops`."""
