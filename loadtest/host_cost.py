"""What a step costs apart from the model: `python -m loadtest.host_cost`.

The engine's loop with a model that computes nothing: scheduling, building the batch, sampling from a tiny vocabulary, taking the results,
counting, and the message to the API process. It should grow with the running sequences only: neither with those that wait nor with how
long each is.
"""

from __future__ import annotations

import argparse
import statistics
import time
from concurrent.futures import Future

import msgspec
import torch

from engine.cache_engine import CacheEngine
from engine.config import EngineConfig
from engine.core import EngineCore
from engine.executor import Executor, WorkerInfo
from engine.layers.parameters import Parameters
from engine.messages import EngineRequest, StepOutputs
from engine.model_config import ModelConfig, RopeConfig
from engine.model_runner import ModelRunner
from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput
from kernels.batch import AttentionShape, Batch
from kernels.ops import Ops, load_ops

VOCAB_SIZE = 32
MAX_MODEL_LEN = 8192
BLOCK_SIZE = 16
TARGETS = {64: 1.0, 256: 4.0}  # milliseconds of a step with so many running sequences


class NoModel:
    """Logits are zero."""

    attention_shapes = (AttentionShape(num_heads=1, num_kv_heads=1, head_size=8, scale=1.0),)
    parameters = Parameters

    def forward(self, ops: Ops, batch: Batch, kv_caches: list[torch.Tensor]) -> torch.Tensor:
        return torch.zeros(len(batch.logits_indices), VOCAB_SIZE)


class NoExecutor(Executor):
    """A worker around it."""

    def __init__(self, config: EngineConfig, num_blocks: int) -> None:
        ops = load_ops("reference", torch.device("cpu"), torch.float32, None)
        model = NoModel()
        self.info = WorkerInfo(num_blocks=num_blocks, kernels="none")
        self._runner = ModelRunner(
            model,  # type: ignore[arg-type]
            ops,
            CacheEngine(list(model.attention_shapes), num_blocks, BLOCK_SIZE, torch.float32, ops),
            max_num_seqs=config.seq_budget,
            token_budget=config.token_budget,
            max_model_len=MAX_MODEL_LEN,
            block_size=BLOCK_SIZE,
            eos_token_ids=[0],
            enforce_eager=True,
        )

    def execute(self, step: StepInput) -> Future[StepOutput]:
        future: Future[StepOutput] = Future()
        started = time.monotonic()
        output = self._runner.execute(step)
        future.set_result(msgspec.structs.replace(output, started=started, ended=time.monotonic()))
        return future


def new_core(num_running: int, num_waiting: int, context: int, policy: str) -> EngineCore:
    """An engine that decodes `num_running` sequences of `context` tokens, while `num_waiting` wait."""
    config = EngineConfig(max_num_seqs=num_running, max_num_batched_tokens=8192, block_size=BLOCK_SIZE, scheduling_policy=policy)  # type: ignore[arg-type]
    model = ModelConfig("none", VOCAB_SIZE, 8, 8, 1, 1, 1, 8, 1e-5, max_position_embeddings=MAX_MODEL_LEN, rope=RopeConfig())
    core = EngineCore(config, model, NoExecutor(config, num_blocks=num_running * (context + 1000) // BLOCK_SIZE + 100))
    for i in range(num_running + num_waiting):
        core.add_request(
            EngineRequest(
                request_id=f"cmpl-{i:032x}",
                prompt_token_ids=[1 + (i + j) % 30 for j in range(context)],
                params=SamplingParams(ignore_eos=True),
                seed=i,
                max_tokens=MAX_MODEL_LEN - context,
                arrival=i,
                tenant=f"{i % 7}",
            )
        )
    while any(not sequence.is_decoding for sequence in core.scheduler.running) or len(core.scheduler.running) < num_running:
        core.step()
    return core


def measure(core: EngineCore, num_steps: int) -> tuple[float, float, float, float]:
    """Milliseconds a step: all of it, scheduling, the worker, and the rest."""
    encoder = msgspec.msgpack.Encoder()
    totals = []
    for _ in range(num_steps):
        started = time.perf_counter()
        encoder.encode(StepOutputs(core.step(), core.stats()))
        totals.append(time.perf_counter() - started)
    records = core.call("timeline")[-num_steps:]
    total = statistics.median(totals)
    schedule = statistics.median(record.schedule_end - record.schedule_start for record in records)
    worker = statistics.median(record.execute_end - record.execute_start for record in records)
    return 1e3 * total, 1e3 * schedule, 1e3 * worker, 1e3 * (total - schedule - worker)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--policy", default="priority")
    args = parser.parse_args()
    torch.set_num_threads(1)
    print("| running | waiting | tokens each | step, ms | schedule | batch and sampler | update, count, encode | target |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    cases = [(1, 0, 100), (16, 0, 100), (64, 0, 100), (128, 0, 100), (256, 0, 100), (64, 10000, 100), (64, 0, 1000), (64, 0, 4000)]
    for num_running, num_waiting, context in cases:
        total, schedule, worker, rest = measure(new_core(num_running, num_waiting, context, args.policy), args.steps)
        target = f"{TARGETS[num_running]:g}" if num_running in TARGETS else ""
        cells = (num_running, num_waiting, context, f"{total:.2f}", f"{schedule:.2f}", f"{worker:.2f}", f"{rest:.2f}", target)
        print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
