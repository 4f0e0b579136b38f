"""Timeline: what the latest steps did and when, to see where time goes and whether scheduling hides behind execution."""

from __future__ import annotations

from collections import deque

import msgspec

from engine.step import StepOutput
from engine.step_builder import ScheduledStep

CAPACITY = 1024  # steps


class StepRecord(msgspec.Struct, frozen=True):
    """One step. Times are of `time.monotonic`, in seconds; the worker's are of its own machine's clock."""

    index: int  # counts from 0 since the engine started
    schedule_start: float
    schedule_end: float
    execute_start: float
    execute_end: float
    sample_seconds: float  # the last part of the execution
    request_ids: list[str]
    num_tokens: list[int]  # computed, for each of the requests
    preempted: list[str]  # request ids that lost their blocks to this step
    num_block_copies: int  # from one block of the device to another
    num_swapped_blocks: int  # between device and host


class Timeline:
    """A ring of the latest steps."""

    def __init__(self) -> None:
        self._num_steps = 0
        self._records: deque[StepRecord] = deque(maxlen=CAPACITY)

    def record(self, step: ScheduledStep, schedule_start: float, schedule_end: float, output: StepOutput) -> None:
        """A step is done."""
        record = StepRecord(
            index=self._num_steps,
            schedule_start=schedule_start,
            schedule_end=schedule_end,
            execute_start=output.started,
            execute_end=output.ended,
            sample_seconds=output.sample_seconds,
            request_ids=[sequence.request.request_id for sequence in step.sequences],
            num_tokens=step.input.query_lens,
            preempted=step.preempted,
            num_block_copies=len(step.input.block_copies),
            num_swapped_blocks=len(step.input.swap_outs) + len(step.input.swap_ins),
        )
        self._num_steps += 1
        self._records.append(record)

    def records(self) -> list[StepRecord]:
        """The latest steps, oldest first."""
        return list(self._records)
