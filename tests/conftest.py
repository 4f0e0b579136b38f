"""What must be settled before any test module is imported."""

import os

# Triton decides at import whether it compiles for a GPU or interprets on the CPU. `TRITON_INTERPRET=0 pytest tests/kernels` runs the
# tests of the Triton kernels on a GPU.
os.environ.setdefault("TRITON_INTERPRET", "1")
