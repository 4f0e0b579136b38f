"""A progress bar for loads that take long."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from engine.loader.model_source import Progress

tqdm.monitor_interval = 0  # no thread that watches over bars
_DELAY_SECONDS = 1.0  # a shorter load shows no bar


@contextmanager
def loading_bar(title: str) -> Iterator[Progress]:
    """Yields a function of (bytes done, bytes in total) that draws on standard error, if that is a terminal."""
    with tqdm(
        desc=title, unit="B", unit_scale=True, unit_divisor=1024, delay=_DELAY_SECONDS, leave=False, disable=not sys.stderr.isatty()
    ) as bar:

        def update(done_bytes: int, total_bytes: int) -> None:
            bar.total = total_bytes
            bar.update(done_bytes - bar.n)

        yield update
