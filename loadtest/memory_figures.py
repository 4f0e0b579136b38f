"""What paging the KV cache wins, and what block sizes cost: `python -m loadtest.memory_figures` (docs/memory.md).

How many sequences run at once in a given memory, on the real scheduler and block manager, with a worker that computes nothing; and how fast
the default model decodes with blocks of each size.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from concurrent.futures import Future
from dataclasses import dataclass

import torch

from engine.cache_engine import bytes_per_block
from engine.config import GIB, EngineConfig
from engine.core import EngineCore
from engine.executor import Executor, WorkerInfo
from engine.llm import LLM
from engine.loader.resolve import resolve_model
from engine.messages import EngineRequest
from engine.model_config import ModelConfig
from engine.models import build_model
from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput

BLOCK_SIZES = (16, 32, 64)
MAX_MODEL_LEN = 8192
SHORTEST, LONGEST = 32, 2000  # prompt and output of a sequence together, each length as likely as another


class NoWorker(Executor):
    """Gives every sequence a token and computes nothing."""

    def __init__(self, num_blocks: int) -> None:
        self.info = WorkerInfo(num_blocks=num_blocks, kernels="none")

    def execute(self, step: StepInput) -> Future[StepOutput]:
        num_seqs = len(step.slots)
        future: Future[StepOutput] = Future()
        future.set_result(StepOutput([[1] if samples else [] for samples in step.samples], [None] * num_seqs, [None] * num_seqs))
        return future


@dataclass
class Occupancy:
    """Of a pool under more requests than it holds."""

    num_running: float  # mean over the steps
    unused: float  # slots without KV, as a share of those in block tables: mean
    most_unused: float  # in any step
    preemptions: float  # of 100 sequences


def occupancy(model_config: ModelConfig, num_blocks: int, block_size: int, num_steps: int) -> Occupancy:
    """After a warm-up in which the first sequences, which all begin at once, have spread out."""
    config = EngineConfig(device="cpu", max_model_len=MAX_MODEL_LEN, max_num_seqs=1024, max_num_batched_tokens=1280, block_size=block_size)
    core, rng = EngineCore(config, model_config, NoWorker(num_blocks)), random.Random(0)
    running, unused, num_added, num_before = [], [], 0, (0, 0)
    for step in range(2 * num_steps):
        while core.scheduler.num_waiting < 4:
            core.add_request(_new_request(num_added, rng))
            num_added += 1
        core.step()
        stats = core.stats()
        if step == num_steps:
            num_before = stats.preemptions_total, num_added
        if step >= num_steps:
            running.append(stats.num_running)
            unused.append(stats.unused_slots / stats.table_slots)
    core.check()
    preemptions = 100 * (core.stats().preemptions_total - num_before[0]) / (num_added - num_before[1])
    return Occupancy(statistics.mean(running), statistics.mean(unused), max(unused), preemptions)


def _new_request(index: int, rng: random.Random) -> EngineRequest:
    length = rng.randint(SHORTEST, LONGEST)
    num_prompt_tokens = max(1, int(length * rng.random()))
    return EngineRequest(
        request_id=str(index),
        prompt_token_ids=[rng.randrange(3, 40_000) for _ in range(num_prompt_tokens)],
        params=SamplingParams(ignore_eos=True),
        seed=0,
        max_tokens=length - num_prompt_tokens,
        arrival=index,
    )


def show_occupancy(memory: int, num_steps: int) -> None:
    model_config = resolve_model(None, None, "auto", 0).config()
    shapes = build_model(model_config, MAX_MODEL_LEN, torch.device("cpu")).attention_shapes
    per_token = bytes_per_block(shapes, 1, torch.float32)
    num_tokens = memory // per_token
    print(f"{memory / GIB:g} GiB of KV at {per_token:,} bytes a token: {num_tokens:,} tokens\n")
    print(
        "| allocation | sequences at once | unused slots, mean | most | preemptions of 100 | block table of 8192 tokens |\n| "
        + "--- | " * 6
    )
    mean_len = (SHORTEST + LONGEST) / 2
    print(f"| contiguous, {MAX_MODEL_LEN} tokens each | {num_tokens // MAX_MODEL_LEN} | | | | |")
    print(f"| contiguous, final length known in advance | {num_tokens / mean_len:.0f} | | | | |")
    for block_size in BLOCK_SIZES:
        found = occupancy(model_config, memory // (per_token * block_size), block_size, num_steps)
        table_bytes = 4 * MAX_MODEL_LEN // block_size
        print(
            f"| blocks of {block_size} | {found.num_running:.0f} | {found.unused:.1%} | {found.most_unused:.1%} "
            f"| {found.preemptions:.0f} | {table_bytes:,} bytes |",
            flush=True,
        )


def decode_seconds(engines: dict[int, EngineCore], num_seqs: int, context: int, num_steps: int) -> list[dict[int, float]]:
    """Seconds of steps in which `num_seqs` sequences decode after prompts of `context` tokens, by block size. The engines step in turn."""
    rng = random.Random(0)
    prompts = [[rng.randrange(3, 40_000) for _ in range(context)] for _ in range(num_seqs)]
    params = SamplingParams(temperature=0.0, ignore_eos=True)
    for engine in engines.values():
        for i, prompt in enumerate(prompts):
            request = EngineRequest(request_id=str(i), prompt_token_ids=prompt, params=params, seed=0, max_tokens=MAX_MODEL_LEN - context)
            engine.add_request(request)
        while sum(sequence.is_decoding for sequence in engine.scheduler.running) < num_seqs:
            engine.step()
    turns = []
    for _ in range(num_steps):
        sizes = list(engines)
        rng.shuffle(sizes)
        turns.append({size: _step_seconds(engines[size], num_seqs) for size in sizes})
    for engine in engines.values():
        engine.abort_requests([str(i) for i in range(num_seqs)])
    return turns


def _step_seconds(engine: EngineCore, num_seqs: int) -> float:
    started = time.perf_counter()
    outputs = engine.step()
    assert len(outputs) == num_seqs, "not all have decoded"
    return time.perf_counter() - started


def show_speed(num_steps: int) -> None:
    engines = {size: LLM(block_size=size, max_model_len=MAX_MODEL_LEN, kv_cache_memory=GIB).engine for size in BLOCK_SIZES}
    print("\n| sequences | context | " + " | ".join(f"ms a step, blocks of {size}" for size in BLOCK_SIZES) + " | 32 : 16 | 64 : 16 |")
    print("| " + "--- | " * 7)
    for num_seqs, context in ((1, 64), (1, 2000), (8, 1000)):
        turns = decode_seconds(engines, num_seqs, context, num_steps)
        cells = [f"{1000 * statistics.median(turn[size] for turn in turns):.1f}" for size in BLOCK_SIZES]
        # What else the machine does hits all sizes of a turn more or less alike.
        cells += [f"{statistics.median(turn[size] / turn[16] for turn in turns):.2f}" for size in (32, 64)]
        print(f"| {num_seqs} | {context} | " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--memory-gib", type=float, default=4.0, help="of KV, for the first table")
    parser.add_argument("--steps", type=int, default=3000, help="that are measured for each block size, and as many before")
    parser.add_argument(
        "--decodes", type=int, default=200, help="steps of each block size in each row of the second table; 0: no such table"
    )
    args = parser.parse_args()
    show_occupancy(int(args.memory_gib * GIB), args.steps)
    if args.decodes:
        show_speed(args.decodes)


if __name__ == "__main__":
    main()
