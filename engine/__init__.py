"""From token ids to token ids: scheduling, paged memory, the model and the sampler.

Importing this package is cheap: what needs PyTorch is imported only by the process that computes.
"""
