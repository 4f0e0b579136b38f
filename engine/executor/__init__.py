"""Where the model runs: in this process today; several processes or machines are other executors."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Protocol

from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput


@dataclass(frozen=True)
class WorkerInfo:
    """What the engine needs to know of its workers once they have loaded the model."""

    num_blocks: int
    kernels: str  # name of the operation set
    num_host_blocks: int = 0  # behind them, in host memory


class PendingStep(Protocol):
    """A step that was given to the executor; a Future is one."""

    def result(self) -> StepOutput:
        """Wait for it. Raises what made it fail. Called once for each step, in their order."""
        ...


class Executor(Protocol):
    info: WorkerInfo

    def prepare(self, params: SamplingParams) -> Future[None] | None:
        """Begin what sequences of such settings need and what takes long, beside the steps. None: they may run at once.

        The future ends without a result, or with an exception, which comes again when the sequence runs and ends it.
        """
        ...

    def execute(self, step: StepInput) -> PendingStep:
        """Run a step. Steps run in the order of the calls."""
        ...

    def free_cache(self) -> None:
        """Give the memory of all KV blocks back, once no step is under way."""
        ...

    def restore_cache(self) -> None:
        """Take it again. The blocks hold nothing."""
        ...

    def shutdown(self) -> None: ...
