"""What sampling costs: per kind of request, with the reference and with the CPU kernels, and for neighbours of rows that use stages.

    python -m loadtest.bench_sampler --rows 64

A row of the table is a batch in which all requests are of one kind; the last ones are batches in which one request of 64 is.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

from engine.sampler import Sampler
from engine.sampling_params import SamplingParams
from engine.step import NewSequence
from kernels.ops import Ops, load_ops

VOCAB = 49_152
PROMPT = 200
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "temperature": {"temperature": 0.8},
    "top_p 0.9": {"top_p": 0.9},
    "top_k 50": {"top_k": 50},
    "min_p 0.05": {"min_p": 0.05},
    "top_k 40, top_p 0.95": {"top_k": 40, "top_p": 0.95, "temperature": 0.8},
    "greedy, top 5 log probabilities": {"temperature": 0.0, "logprobs": 5},
    "penalties": {"temperature": 0.0, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.1},
    "logit_bias": {"temperature": 0.0, "logit_bias": dict.fromkeys(range(50), 1.0)},
    "bad_words": {"temperature": 0.0, "bad_words_token_ids": tuple((token_id, token_id + 1) for token_id in range(100))},
    "allowed_token_ids": {"temperature": 0.0, "allowed_token_ids": tuple(range(100))},
}
STAGES = ("penalties", "logit_bias", "bad_words", "allowed_token_ids")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=64)
    parser.add_argument("--repeat", type=int, default=15)
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # as in the engine's process
    sets = [load_ops(name, torch.device("cpu"), torch.float32) for name in ("reference", "cpu")]
    print(f"{arguments.rows} rows of {VOCAB}; milliseconds of the fastest of {arguments.repeat}")
    print(f"{'':40}{'reference':>12}{'cpu':>12}")

    def report(name: str, params: list[SamplingParams]) -> None:
        print(f"{name:40}" + "".join(f"{1e3 * seconds(ops, params, arguments.repeat):12.3f}" for ops in sets), flush=True)

    for name, kind in KINDS.items():
        report(name, [SamplingParams(**kind)] * arguments.rows)
    report("one greedy row", [SamplingParams(temperature=0)])
    report("one row of top_p 0.9", [SamplingParams(top_p=0.9)])
    others = [SamplingParams(temperature=0)] * (arguments.rows - 1)
    for name in STAGES:
        report(f"greedy, of which one with {name}", [*others, SamplingParams(**KINDS[name])])


def seconds(ops: Ops, params: list[SamplingParams], repeat: int) -> float:
    """The shortest time of a step's sampling."""
    num_rows = len(params)
    random = np.random.default_rng(0)
    table = random.integers(0, VOCAB, (num_rows, PROMPT + repeat + 1), np.int32)
    sampler = Sampler(ops, table, [2])
    for slot, one in enumerate(params):
        sampler.admit(NewSequence(slot, table[slot, :PROMPT].tolist(), PROMPT, one, slot, 0, [], None))
    # As SmolLM2's are when it tells stories: a deviation of 3.8, the largest 22 above the mean, two nats of entropy.
    values = random.normal(0.0, 3.5, (num_rows, VOCAB)).astype(np.float32)
    values[:, random.integers(0, VOCAB, 40)] = random.uniform(10.0, 22.0, (num_rows, 40)).astype(np.float32)
    logits = torch.from_numpy(values)
    slots, best = np.arange(num_rows), float("inf")
    for step in range(repeat):
        copy = logits.clone()
        started = time.perf_counter()
        sampler.sample(copy, slots, np.full(num_rows, PROMPT + step))
        best = min(best, time.perf_counter() - started)
    return best


if __name__ == "__main__":
    with torch.inference_mode():
        main()
