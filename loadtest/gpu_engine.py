"""The whole engine on a GPU, with random weights of Llama 3 8B's shapes, beside transformers on the same device.

Dummy weights need no download: the shapes are written as a config.json, with a tokenizer that nobody uses, into a directory of their own.
`loadtest.gpu_check` runs this; in Triton's interpreter the model is a toy.
"""

from __future__ import annotations

import itertools
import json
import random
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models

from engine.llm import LLM
from engine.sampling_params import SamplingParams

LLAMA_3_8B = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "torch_dtype": "bfloat16", "vocab_size": 128256, "hidden_size": 4096,
    "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8, "hidden_act": "silu",
    "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False, "bos_token_id": 1,
    "eos_token_id": 2,
}  # fmt: skip
TOY = {
    **LLAMA_3_8B, "vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": 128,
}  # fmt: skip


@dataclass(frozen=True)
class Load:
    """What is served in the measurement."""

    model: dict[str, Any]
    num_seqs: int
    context: int  # tokens of a prompt
    new_tokens: int
    prefill: int  # tokens of the prompt that is timed alone
    num_requests: int  # of mixed lengths, of which num_seqs run at once
    longest_prompt: int  # of these
    longest_output: int


REAL_LOAD = Load(LLAMA_3_8B, 64, 1024, 48, 8000, 128, 512, 192)
TOY_LOAD = Load(TOY, 2, 20, 4, 40, 3, 8, 4)


@dataclass(frozen=True)
class DecodeFigures:
    """Of the decode steps of one run: medians."""

    step_seconds: float  # from one step's start to the next one's
    host_share: float  # of that, what passes outside of `execute`: the device has nothing to do then


def write_model(directory: Path, config: dict[str, Any]) -> str:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    Tokenizer(models.WordLevel({f"{i}": i for i in range(64)}, unk_token="0")).save(str(directory / "tokenizer.json"))
    (directory / "tokenizer_config.json").write_text("{}")
    return str(directory)


def new_engine(directory: Path, load: Load, device: torch.device, **settings: Any) -> LLM:
    on_gpu = device.type == "cuda"
    length = load.model["max_position_embeddings"]
    defaults: dict[str, Any] = {"kernels": "triton", "load_format": "dummy", "enable_prefix_caching": False, "max_num_seqs": load.num_seqs}
    defaults |= {"device": device.type, "max_model_len": length, "swap_space": 0}  # pinning gigabytes takes seconds
    if not on_gpu:
        defaults |= {"dtype": "float16", "num_gpu_blocks_override": 2 * length // 16, "async_scheduling": False}
    return LLM(model=write_model(directory, load.model), **{**defaults, **settings})


def prompts(load: Load, count: int, length: int) -> list[list[int]]:
    """Different ones, so that nothing is shared."""
    return [[3 + (7 * i + 11 * s) % (load.model["vocab_size"] - 3) for i in range(length)] for s in range(count)]


def decode(llm: LLM, load: Load, num_seqs: int) -> DecodeFigures:
    """`num_seqs` sequences of the load's context, twice: once to warm up."""
    params = SamplingParams(temperature=0, max_tokens=load.new_tokens, ignore_eos=True)
    for _ in range(2):
        llm.generate(prompts(load, num_seqs, load.context), params, use_tqdm=False)
    records = [record for record in llm.engine.call("timeline") if record.num_tokens == [1] * num_seqs][-load.new_tokens // 2 :]
    pairs = list(itertools.pairwise(records))
    steps = [later.execute_start - earlier.execute_start for earlier, later in pairs]
    gaps = [later.execute_start - earlier.execute_end for earlier, later in pairs]
    step = statistics.median(steps)
    return DecodeFigures(step, statistics.median(gaps) / step)


def prefill_seconds(llm: LLM, load: Load) -> float:
    """From the request to the first token of a long prompt; the second try counts."""
    params = SamplingParams(temperature=0, max_tokens=1)
    for _ in range(2):
        started = time.perf_counter()
        llm.generate(prompts(load, 1, load.prefill), params, use_tqdm=False)
        seconds = time.perf_counter() - started
    return seconds


def forward_seconds(llm: LLM, load: Load, num_seqs: int) -> float:
    """What the device itself takes for the forward pass of a decode step and its draws, by its own clock."""
    runner = llm.engine._executor._runner  # type: ignore[attr-defined]
    forward, events = runner._forward, []

    def timed(batch: Any) -> torch.Tensor:
        pair = [torch.cuda.Event(enable_timing=True) for _ in range(2)]  # type: ignore[no-untyped-call]
        pair[0].record()
        result: torch.Tensor = forward(batch)
        pair[1].record()
        if batch.max_query_len == 1 and batch.num_seqs == num_seqs:
            events.append(pair)
        return result

    runner._forward = timed
    decode(llm, load, num_seqs)
    runner._forward = forward
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in events) / 1000


def num_changed_by_launching_ahead(llm: LLM, load: Load) -> int:
    """How many sequences, half of them greedy, get other tokens than when every step is waited for."""
    params = [
        SamplingParams(temperature=i % 2, seed=i, top_p=0.9, max_tokens=load.new_tokens, ignore_eos=True) for i in range(load.num_seqs)
    ]
    tokens = []
    for num_under_way in (1, 2):
        llm.engine._depth = num_under_way
        outputs = llm.generate(prompts(load, load.num_seqs, load.context), params, use_tqdm=False)
        tokens.append([output.outputs[0].token_ids for output in outputs])
    return sum(one != other for one, other in zip(*tokens, strict=True))


def weight_bytes(config: dict[str, Any]) -> int:
    """Of the weights that a decode step reads, in 16 bits: all but the table of embeddings."""
    hidden, layers = config["hidden_size"], config["num_hidden_layers"]
    head_size = hidden // config["num_attention_heads"]
    attention = hidden * hidden * 2 + 2 * hidden * config["num_key_value_heads"] * head_size
    return 2 * (layers * (attention + 3 * hidden * config["intermediate_size"]) + config["vocab_size"] * hidden)


def kv_bytes(config: dict[str, Any], num_tokens: int) -> int:
    head_size = config["hidden_size"] // config["num_attention_heads"]
    return 2 * 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * head_size * num_tokens


def prefill_flops(config: dict[str, Any], num_tokens: int) -> float:
    """Products with weights, and attention behind its mask; the output layer computes one row."""
    inner = weight_bytes(config) / 2 - config["vocab_size"] * config["hidden_size"]
    return float(2 * inner * num_tokens + 2 * num_tokens**2 * config["hidden_size"] * config["num_hidden_layers"])


def mixed_requests(load: Load) -> list[tuple[list[int], int]]:
    """Prompts, each with its number of new tokens: both of all lengths, as requests of users are."""
    lengths = random.Random(0)
    tokens = prompts(load, load.num_requests, load.longest_prompt)
    return [(prompt[: lengths.randint(1, len(prompt))], lengths.randint(1, load.longest_output)) for prompt in tokens]


def mixed_tokens_per_second(llm: LLM, load: Load) -> float:
    """Output tokens of the mixed requests; whatever ends makes room for the next."""
    requests = mixed_requests(load)
    params = [SamplingParams(temperature=0, max_tokens=new_tokens, ignore_eos=True) for _, new_tokens in requests]
    started = time.perf_counter()
    llm.generate([prompt for prompt, _ in requests], params, use_tqdm=False)
    return sum(new_tokens for _, new_tokens in requests) / (time.perf_counter() - started)


def transformers_tokens_per_second(load: Load, device: torch.device) -> float:
    """The same of `generate`: batches of num_seqs requests, padded to the longest prompt, each as long as its longest output."""
    from transformers import AutoModelForCausalLM, LlamaConfig
    from transformers.initialization import no_init_weights

    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    config = LlamaConfig(**{name: value for name, value in load.model.items() if name not in ("architectures", "torch_dtype")})
    with device, no_init_weights():
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.02)

    def generate(batch: list[tuple[list[int], int]], new_tokens: int) -> None:
        width = max(len(prompt) for prompt, _ in batch)
        token_ids = torch.tensor([[0] * (width - len(prompt)) + prompt for prompt, _ in batch], device=device)
        mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt, _ in batch], device=device)
        model.generate(
            token_ids, attention_mask=mask, max_new_tokens=new_tokens, min_new_tokens=new_tokens, do_sample=False, pad_token_id=0
        )  # fmt: skip
        if device.type == "cuda":
            torch.cuda.synchronize()

    requests = mixed_requests(load)
    generate(requests[: load.num_seqs], 2)  # warms up
    started = time.perf_counter()
    for first in range(0, len(requests), load.num_seqs):
        batch = requests[first : first + load.num_seqs]
        generate(batch, max(new_tokens for _, new_tokens in batch))
    return sum(new_tokens for _, new_tokens in requests) / (time.perf_counter() - started)
