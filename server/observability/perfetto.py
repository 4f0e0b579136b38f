"""The engine's timeline as a trace that chrome://tracing and https://ui.perfetto.dev open.

Format: "Trace Event Format", Google. Times are in microseconds.
"""

from __future__ import annotations

from typing import Any

from engine.timeline import StepRecord

_ENGINE, _SEQUENCES = 1, 2  # process ids in the trace
_SCHEDULER, _MODEL, _SAMPLER = 1, 2, 3  # thread ids in the engine's


def trace(records: list[StepRecord]) -> dict[str, Any]:
    """Two groups of tracks: the parts of each step, and for each sequence the steps that it was in."""
    events = [
        *_named(_ENGINE, "engine", {_SCHEDULER: "scheduler", _MODEL: "model", _SAMPLER: "sampler"}),
    ]
    tracks: dict[str, int] = {}
    for record in records:
        events += _parts(record)
        for request_id, num_tokens in zip(record.request_ids, record.num_tokens, strict=True):
            track = tracks.setdefault(request_id, len(tracks) + 1)
            name = "decode" if num_tokens == 1 else f"prefill {num_tokens}"
            args = {"step": record.index, "tokens": num_tokens}
            events.append(_slice(name, _SEQUENCES, track, record.execute_start, record.execute_end, args))
        for request_id in record.preempted:
            track = tracks.setdefault(request_id, len(tracks) + 1)
            events.append({"name": "preempted", "ph": "i", "s": "t", "pid": _SEQUENCES, "tid": track, "ts": _micros(record.schedule_start)})
    events += _named(_SEQUENCES, "sequences", {track: request_id for request_id, track in tracks.items()})
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _parts(record: StepRecord) -> list[dict[str, Any]]:
    sampling = record.execute_end - record.sample_seconds
    args = {
        "step": record.index,
        "sequences": len(record.request_ids),
        "tokens": sum(record.num_tokens),
        "preempted": record.preempted,
        "block_copies": record.num_block_copies,
        "swapped_blocks": record.num_swapped_blocks,
    }
    name = f"step {record.index}"
    counts = {"sequences": len(record.request_ids), "tokens": sum(record.num_tokens)}
    return [
        _slice(name, _ENGINE, _SCHEDULER, record.schedule_start, record.schedule_end, args),
        _slice(name, _ENGINE, _MODEL, record.execute_start, sampling, args),
        _slice(name, _ENGINE, _SAMPLER, sampling, record.execute_end, args),
        {"name": "in the step", "ph": "C", "pid": _ENGINE, "ts": _micros(record.execute_start), "args": counts},
    ]


def _slice(name: str, process: int, thread: int, start: float, end: float, args: dict[str, Any]) -> dict[str, Any]:
    times = {"ts": _micros(start), "dur": max(0.0, _micros(end) - _micros(start))}
    return {"name": name, "ph": "X", "pid": process, "tid": thread, **times, "args": args}


def _named(process: int, name: str, threads: dict[int, str]) -> list[dict[str, Any]]:
    named = [{"name": "process_name", "ph": "M", "pid": process, "args": {"name": name}}]
    return named + [
        {"name": "thread_name", "ph": "M", "pid": process, "tid": thread, "args": {"name": label}} for thread, label in threads.items()
    ]


def _micros(seconds: float) -> float:
    return round(seconds * 1e6, 1)
