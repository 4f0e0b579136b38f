"""Memory beside llama.cpp's: `python -m loadtest.memory_peers --llama-cpp PYTHON [--model M] [--sequences 8]`.

Both serve the same GGUF with room for the same number of tokens, keys and values in float16, as many threads as cores, and do the same
work: a prompt of a step's size, then all sequences at once. The figure is the resident set of the process afterwards, less that of one that
has imported what comes before any model: PyTorch for Octavo, llama_cpp and NumPy for llama.cpp. Weights that llama.cpp has mapped count.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import psutil

from engine.loader.resolve import resolve_model
from loadtest.compare import NEW_TOKENS, Side, make_prompts
from loadtest.peers.program import program

TOKENS_PER_SEQUENCE = 160  # as loadtest/peers/llama_cpp_batch.py has it
BLOCK_SIZE = 16
MIB = 1 << 20


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--llama-cpp", metavar="PYTHON", type=program, required=True)
    parser.add_argument("--model")
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    source = resolve_model(args.model)
    context = max(args.sequences * TOKENS_PER_SEQUENCE, 1024)
    prompts = make_prompts(source.tokenizer(), args.sequences)
    settings = [f"max_model_len={context}", f"num_gpu_blocks_override={context // BLOCK_SIZE}", "kv_cache_dtype=float16"]
    llama_cpp = [args.llama_cpp, str(Path(__file__).parent / "peers" / "llama_cpp_batch.py")]
    ours = measure([sys.executable, "-m", "loadtest.peers.octavo"], source.path, prompts, settings, "import torch, psutil")
    theirs = measure(llama_cpp, source.path, prompts, [], "import llama_cpp, numpy")
    print(f"{context} tokens of context, {args.sequences} sequences, keys and values in float16")
    print(f"Octavo {ours / MIB:.0f} MiB, llama.cpp {theirs / MIB:.0f} MiB, ratio {ours / theirs:.2f}")
    if args.json:
        args.json.write_text(json.dumps({"Octavo": ours, "llama.cpp": theirs}) + "\n")


def measure(command: list[str], model: Path, prompts: list[list[int]], settings: list[str], imports: str) -> int:
    """Bytes beyond a process that has done these imports and nothing else."""
    side = Side(command, model, len(prompts), settings)
    side.run([list(range(100, 612))], 1)
    side.run(prompts, NEW_TOKENS)
    memory = psutil.Process(side.pid).memory_info().rss
    side.close()
    return int(memory) - rss_of_imports(command[0], imports)


def rss_of_imports(python: str, imports: str) -> int:
    script = f"{imports}; print([int(line.split()[1]) for line in open('/proc/self/status') if line.startswith('VmRSS')][0])"
    return 1024 * int(subprocess.run([python, "-c", script], capture_output=True, check=True, text=True).stdout)


if __name__ == "__main__":
    main()
