"""A step that the device may still be computing."""

from __future__ import annotations

from collections.abc import Callable

import torch

from engine.step import StepOutput


class LaunchedStep:
    """What `ModelRunner.launch` returns."""

    def __init__(self, finish: Callable[[], StepOutput]) -> None:
        """`finish` does what is left to do for the result, once."""
        self._finish = finish
        self._output: StepOutput | None = None

    @torch.inference_mode()
    def result(self) -> StepOutput:
        """Wait for the step."""
        if self._output is None:
            self._output = self._finish()
        return self._output
