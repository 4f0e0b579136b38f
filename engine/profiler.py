"""A profile of the engine's process, by PyTorch's profiler: operations, and on CUDA every kernel with its launch.

The CPU's C kernels are one native call a step, which it cannot look into: `python -m loadtest.bench_kernels` measures those.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class Profiler:
    """Writes one trace for each pair of `start` and `stop`, for https://ui.perfetto.dev. Both are called between two steps."""

    def __init__(self, directory: str | None) -> None:
        self._directory = directory
        self._running: Any = None

    def start(self) -> None:
        """Raises RuntimeError when a profile is being made already, or there is no directory for it."""
        from torch.profiler import profile

        if self._directory is None:
            raise RuntimeError("profiles need --profile-dir")
        if self._running is not None:
            raise RuntimeError("a profile is being made already")
        self._running = profile()
        self._running.start()

    def stop(self) -> str:
        """The path of the trace. Raises RuntimeError when no profile is being made."""
        if self._running is None or self._directory is None:
            raise RuntimeError("no profile is being made: start one first")
        running, self._running = self._running, None
        running.stop()
        directory = Path(self._directory).expanduser()
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / f"octavo-engine-{time.strftime('%Y%m%d-%H%M%S')}.json"
        running.export_chrome_trace(str(path))
        return str(path)
