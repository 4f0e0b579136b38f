"""A model's forward pass as a plan: recorded once as a flat list of operations, run as one native call per step.

Dispatching some 360 small operations from Python costs more than computing them. So the forward is run once with a recorder in the
place of the operations: its "tensors" are handles, and each call appends an argument struct. Then handles are laid out in one block of
memory, those that are never alive together in the same place, and the list is ready. A step only fills in the batch's numbers and
addresses.

What the recorder changes, without changing a bit: a norm or an activation whose rows are only read by a quantised product writes them
quantised at once.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from kernels.batch import Batch
from kernels.cpu import structs
from kernels.cpu.ops import CpuOps, codes_struct, fill_step, native
from kernels.cpu.structs import Codes, Op, Step
from kernels.cpu.weights import PackedLinear

ALIGNMENT = 64  # bytes, of each buffer


@dataclass(eq=False)
class Buffer:
    """Memory of one recorded result: where it lies is settled when the recording is complete."""

    num_bytes: int
    first_use: int = -1  # index of the operation that writes it
    last_use: int = -1
    reads: int = 0
    offset: int = -1  # in the plan's memory


@dataclass(eq=False)
class Rows(Buffer):
    """What stands for a tensor [rows, features] of float32 while a forward pass is recorded."""

    shape: tuple[int, int] = (0, 0)  # at full capacity
    counted_by: int = structs.ROWS_TOKENS  # which of the step's numbers the rows are
    producer: Record | None = None


@dataclass(eq=False)
class Record:
    """One recorded operation. Fields that are buffers get their addresses in the end."""

    args_type: Any
    fields: dict[str, Any]
    codes: tuple[Codes, Buffer] | None = None  # of the quantised rows that it reads or writes


WRITTEN = ("out",)  # fields of argument structs that an operation writes; buffers in all others are read
CHANGED = ("residual", "qkv")  # read and, perhaps, written in place
CAN_QUANTIZE = (structs.NormArgs, structs.ActivationArgs)


@dataclass
class Recorder(CpuOps):
    """Has the methods of CpuOps, and writes down what it is asked to do."""

    ops: CpuOps
    capacity: Batch
    num_logits: int
    records: list[Record] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.pool, self.device, self.dtype, self._partials = self.ops.pool, self.ops.device, self.ops.dtype, self.ops._partials

    def _new_rows(self, like: Any, features: int) -> Rows:
        if isinstance(like, Rows):
            counted_by = like.counted_by
        elif like is self.capacity.token_ids:
            counted_by = structs.ROWS_TOKENS
        elif like is self.capacity.logits_indices:
            counted_by = structs.ROWS_LOGITS
        else:
            raise ValueError("a captured forward reads token_ids and logits_indices of its batch and no other index tensors")
        rows = self.num_logits if counted_by == structs.ROWS_LOGITS else self.capacity.num_tokens
        buffer = Rows(rows * features * 4, shape=(rows, features), counted_by=counted_by)
        self.buffers.append(buffer)
        return buffer

    def _rows(self, x: Any) -> int:
        return int(x.counted_by)

    def _step_of(self, x: Any) -> Step:
        return Step()

    def _check_batch(self, batch: Batch) -> None:
        if batch is not self.capacity:
            raise ValueError("a captured forward hands its operations the batch that it was given")

    def _check_rows(self, x: Any, features: int) -> None:
        if not isinstance(x, Rows):
            raise ValueError("a captured forward passes results of operations on to operations, and no other tensors")
        if x.shape[1] != features:
            raise ValueError(f"expected rows of {features}, got {x.shape[1]}")

    def _quantize(self, x: Any, weight: PackedLinear) -> Any:
        """Have `x` quantised where it is made if that is possible, else by an operation of its own."""
        codes = codes_struct(weight)
        maker = x.producer if x.producer is not None and x.producer.args_type in CAN_QUANTIZE else None
        if maker is not None and maker.codes is not None and same_form(maker.codes[0], codes):
            return maker.codes
        buffer = Buffer(x.shape[0] * codes.row_bytes)
        self.buffers.append(buffer)
        if maker is not None and maker.codes is None:
            maker.codes = (codes, buffer)
            buffer.first_use = x.first_use
        else:
            self._emit(structs.QuantizeArgs, Step(), x=x, codes=(codes, buffer), rows=x.counted_by)
        return (codes, buffer)

    def _emit(self, args_type: Any, step: Step, **fields: Any) -> None:
        record = Record(args_type, fields, fields.pop("codes", None))
        index = len(self.records)
        for name, value in [*fields.items(), ("codes", record.codes[1] if record.codes else None)]:
            if isinstance(value, Buffer):
                value.last_use = index
                if name in WRITTEN or value.first_use < 0:
                    value.first_use = index
                    if isinstance(value, Rows):
                        value.producer = record
                else:
                    value.reads += 1
                if name in CHANGED:
                    value.producer = None  # its rows are not what the producer made any more
        # The step's own indices change from step to step; the native side finds them there.
        if fields.get("indices") is self.capacity.logits_indices:
            fields["indices"] = None
        self.records.append(record)


def same_form(one: Codes, other: Codes) -> bool:
    return (one.group_size, one.code_bytes, one.features) == (other.group_size, other.code_bytes, other.features)


def record(ops: CpuOps, forward: Callable[[Any, Batch], Any], capacity: Batch, num_logits: int) -> Plan:
    """Run `forward` with a recorder and make a plan of what it did. Raises ValueError for a forward that does more than call operations."""
    recorder = Recorder(ops, capacity, num_logits)
    result = forward(recorder, capacity)
    if not isinstance(result, Rows):
        raise ValueError("a captured forward returns the result of an operation")
    result.last_use = len(recorder.records)
    result.reads += 1
    for entry in recorder.records:
        out = entry.fields.get("out")
        if entry.codes and entry.args_type in CAN_QUANTIZE and out.reads == 0:
            entry.fields["out"] = None
            recorder.buffers.remove(out)
    memory = torch.empty(lay_out(recorder.buffers) + ALIGNMENT, dtype=torch.uint8)
    return Plan(ops, recorder, memory, result)


def lay_out(buffers: list[Buffer]) -> int:
    """Give every buffer an offset, so that no two that are alive at once overlap; returns the bytes needed.

    First fit, the largest first: a handful of large buffers decides the size.
    """
    placed: list[Buffer] = []
    end = 0
    for buffer in sorted(buffers, key=lambda b: -b.num_bytes):
        alive = [other for other in placed if other.first_use <= buffer.last_use and buffer.first_use <= other.last_use]
        offset = 0
        for other in sorted(alive, key=lambda o: o.offset):
            if offset + buffer.num_bytes <= other.offset:
                break
            offset = max(offset, -(-(other.offset + other.num_bytes) // ALIGNMENT) * ALIGNMENT)
        buffer.offset = offset
        end = max(end, offset + buffer.num_bytes)
        placed.append(buffer)
    return end


class Plan:
    """A recorded forward pass. Calling it with a batch runs the step and returns the logits [num_logits, vocabulary].

    The result is a view of the plan's memory, overwritten by the next call.
    """

    def __init__(self, ops: CpuOps, recorder: Recorder, memory: torch.Tensor, result: Rows) -> None:
        self.pool = ops.pool
        self.max_tokens = recorder.capacity.num_tokens
        # A pass that ends with hidden states gathers no rows: then it does not matter how many are wanted.
        gathers = any(isinstance(buffer, Rows) and buffer.counted_by == structs.ROWS_LOGITS for buffer in recorder.buffers)
        self.max_logits = recorder.num_logits if gathers else None
        self.num_bytes = memory.numel()
        self._start = -memory.data_ptr() % ALIGNMENT
        self._address = memory.data_ptr() + self._start
        self._counted_by = result.counted_by
        self._result = memory[self._start + result.offset :][: result.num_bytes].view(torch.float32).view(result.shape)
        self._latest = self._result  # the rows that the latest step gave
        self._args = [self._place(entry) for entry in recorder.records]
        kinds = [(entry.args_type.kind, 0, ctypes.addressof(args)) for entry, args in zip(recorder.records, self._args, strict=True)]
        self._ops = (Op * len(kinds))(*kinds)
        self._step = Step()
        self._keep = (memory, recorder)  # everything that the list points into

    def __call__(self, batch: Batch) -> torch.Tensor:
        num_logits = batch.logits_indices.shape[0]
        if batch.num_tokens > self.max_tokens or (self.max_logits is not None and num_logits > self.max_logits):
            raise ValueError(
                f"the plan was made for {self.max_tokens} tokens and {self.max_logits} logits, got {batch.num_tokens} and {num_logits}"
            )
        step = fill_step(self._step, batch)
        self.pool.library.octavo_run(self.pool.address, self._ops, len(self._ops), ctypes.byref(step))
        num_rows = num_logits if self._counted_by == structs.ROWS_LOGITS else batch.num_tokens
        if len(self._latest) != num_rows:
            self._latest = self._result[:num_rows]
        return self._latest

    def _place(self, entry: Record) -> Any:
        fields = {name: self._native(value) for name, value in entry.fields.items() if entry.args_type.has(name)}
        if entry.codes:
            codes, buffer = entry.codes
            codes.data = self._native(buffer)
            fields["codes"] = codes
        return entry.args_type(**fields)

    def _native(self, value: Any) -> Any:
        return self._address + value.offset if isinstance(value, Buffer) else native(value)
