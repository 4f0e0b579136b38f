"""What must be settled before any test module is imported."""

import os

from hypothesis import settings

# Triton decides at import whether it compiles for a GPU or interprets on the CPU. `TRITON_INTERPRET=0 pytest tests/kernels` runs the
# tests of the Triton kernels on a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")

# How long an example takes says nothing on a machine that does other things too.
settings.register_profile("octavo", deadline=None)
settings.load_profile("octavo")
