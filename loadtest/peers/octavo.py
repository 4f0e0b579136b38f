"""Octavo, in process."""

from __future__ import annotations

import json
import sys
import time

from octavo import LLM, SamplingParams


def main() -> None:
    model, max_num_seqs, num_threads = sys.argv[1:]
    llm = LLM(model, max_num_seqs=int(max_num_seqs), num_threads=int(num_threads))
    for line in sys.stdin:
        job = json.loads(line)
        params = SamplingParams(temperature=0, max_tokens=job["new_tokens"], ignore_eos=True)
        started = time.perf_counter()
        llm.generate(job["prompts"], params, use_tqdm=False)
        print(time.perf_counter() - started, flush=True)


if __name__ == "__main__":
    main()
