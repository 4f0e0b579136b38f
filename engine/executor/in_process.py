"""InProcessExecutor: one worker, in the engine's own process."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch

from engine.cache_engine import CacheEngine, bytes_per_block, plan_num_blocks
from engine.config import EngineConfig
from engine.errors import ConfigError, is_out_of_memory
from engine.executor import PendingStep, WorkerInfo
from engine.grammar.compiler import GrammarCompiler
from engine.host_pool import plan_num_host_blocks
from engine.loader.model_source import ModelSource
from engine.loader.progress import loading_bar
from engine.logits_processors import LogitsProcessorRegistry
from engine.model_config import resolve_max_model_len
from engine.model_runner import ModelRunner
from engine.models import build_model
from engine.sampling_params import SamplingParams
from engine.step import StepInput, StepOutput
from kernels.ops import Ops, load_ops


class InProcessExecutor:
    """Loads the model and runs each step as it is given; where steps overlap, on a thread of its own, or by launching them ahead.

    `config.device` is resolved. Raises ConfigError or ModelLoadError when the model cannot be served.
    """

    def __init__(self, config: EngineConfig, source: ModelSource, grammars: GrammarCompiler | None = None) -> None:
        """`grammars`: those of this process, where it has some already."""
        processors = LogitsProcessorRegistry(config.logits_processors)
        processors.load()
        model_config = source.config()
        device = torch.device(config.device)
        dtype = _pick_dtype(config, device, model_config.dtype)
        ops = _load_ops(config, device, dtype)
        max_model_len = resolve_max_model_len(config, model_config)
        model = build_model(model_config, max_model_len, device)

        # The pool is planned before the weights are read, so that settings that cannot work are refused at once; on CUDA the free
        # memory is known only when they are there.
        kv_dtype = _pick_kv_dtype(config, ops, dtype)
        block_bytes = bytes_per_block(model.attention_shapes, config.block_size, kv_dtype)
        num_blocks = plan_num_blocks(config, block_bytes, max_model_len, device) if device.type == "cpu" else 0
        num_host_blocks = plan_num_host_blocks(config, block_bytes, device)
        with loading_bar(f"loading {source.name}") as progress:
            model.parameters.load(source.weights(progress), ops, config.quantization)
        if device.type != "cpu":
            torch.cuda.empty_cache()  # what packing needed for a while counts as taken else
            num_blocks = plan_num_blocks(config, block_bytes, max_model_len, device)

        self._cache = CacheEngine(model.attention_shapes, num_blocks, config.block_size, kv_dtype, ops, num_host_blocks)
        self.info = WorkerInfo(num_blocks=num_blocks, kernels=ops.name, num_host_blocks=num_host_blocks)
        self._grammars = grammars or GrammarCompiler(source.tokenizer, model_config.vocab_size, model_config.eos_token_ids)
        self._grammar_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammars")
        with _room_for_steps(config):
            self._runner = ModelRunner(
                model,
                ops,
                self._cache,
                max_num_seqs=config.seq_budget,
                token_budget=config.token_budget,
                max_model_len=max_model_len,
                block_size=config.block_size,
                eos_token_ids=model_config.eos_token_ids,
                enforce_eager=config.enforce_eager,
                grammars=self._grammars,
                processors=processors,
            )
        # A device that computes by itself needs no thread that waits for it.
        needs_thread = config.overlaps_steps and not self._runner.launches_ahead
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="steps") if needs_thread else None

    def prepare(self, params: SamplingParams) -> Future[None] | None:
        constraint = params.structured_outputs
        if constraint is None or self._grammars.has(constraint):
            return None
        return self._grammar_thread.submit(self._grammars.check, constraint)

    def execute(self, step: StepInput) -> PendingStep:
        if self._thread is not None:
            return self._thread.submit(self._runner.execute, step)
        try:
            return self._runner.launch(step)
        except BaseException as error:
            future: Future[StepOutput] = Future()
            future.set_exception(error)
            return future

    def free_cache(self) -> None:
        self._cache.free()

    def restore_cache(self) -> None:
        if self._cache.restore():
            self._runner.record()

    def shutdown(self) -> None:
        if self._thread is not None:
            self._thread.shutdown(wait=True, cancel_futures=True)
        del self._runner


@contextmanager
def _room_for_steps(config: EngineConfig) -> Iterator[None]:
    """Says which settings ask for more memory than there is."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"there is no memory for steps of {config.token_budget} tokens and {config.seq_budget} sequences ({error}): "
            "lower --max-num-batched-tokens, --max-num-seqs or --max-model-len"
        ) from error


def _pick_dtype(config: EngineConfig, device: torch.device, checkpoint_dtype: str) -> torch.dtype:
    if config.dtype != "auto":
        return getattr(torch, config.dtype)  # type: ignore[no-any-return]
    if device.type == "cpu":
        return torch.float32
    return torch.float16 if checkpoint_dtype == "float16" else torch.bfloat16


def _pick_kv_dtype(config: EngineConfig, ops: Ops, dtype: torch.dtype) -> torch.dtype:
    name = config.kv_cache_dtype
    if name != "auto":
        dtype = torch.float8_e4m3fn if name == "fp8" else getattr(torch, name)
    if dtype not in ops.kv_dtypes:
        known = ", ".join(str(known).removeprefix("torch.") for known in ops.kv_dtypes)
        raise ConfigError(f"kv_cache_dtype {name} is not for the {ops.name} kernels on this device, which keep keys and values as {known}")
    return dtype


def _load_ops(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Ops:
    try:
        ops = load_ops(config.kernels, device, dtype, config.num_threads, deterministic=config.deterministic)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if ops.name == "cpu":
        # These kernels have threads of their own. A second pool beside them, PyTorch's, wins nothing for the sampler's small operations
        # on an idle machine, and makes them many times slower on a busy one.
        torch.set_num_threads(1)
    elif device.type == "cpu" and config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    return ops
