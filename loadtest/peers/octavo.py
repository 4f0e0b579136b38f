"""Octavo, in process. Further arguments are settings: `kv_cache_dtype=float16`."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from octavo import LLM, SamplingParams


def main() -> None:
    model, max_num_seqs, num_threads, *others = sys.argv[1:]
    settings: dict[str, Any] = {name: int(value) if value.isdigit() else value for name, value in (other.split("=") for other in others)}
    llm = LLM(model, max_num_seqs=int(max_num_seqs), num_threads=int(num_threads), **settings)
    for line in sys.stdin:
        job = json.loads(line)
        params = SamplingParams(temperature=0, max_tokens=job["new_tokens"], ignore_eos=True)
        started = time.perf_counter()
        llm.generate(job["prompts"], params, use_tqdm=False)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
