"""vLLM on the CPU, in process, float32. MODEL is a Hugging Face directory (`loadtest/peers/hugging_face.py` writes one).

Runs in an environment of its own, so it imports nothing of Octavo.
"""

import json
import os
import sys
import time


def main() -> None:
    path, max_num_seqs, num_threads = sys.argv[1:]
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")  # GiB
    os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{int(num_threads) - 1}")
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM and its processes print goes to standard error
    from vllm import LLM, SamplingParams

    llm = LLM(path, dtype="float32", max_num_seqs=int(max_num_seqs), max_model_len=2048, enable_prefix_caching=False)
    for line in sys.stdin:
        job = json.loads(line)
        params = SamplingParams(temperature=0, max_tokens=job["new_tokens"], ignore_eos=True)
        prompts = [{"prompt_token_ids": prompt} for prompt in job["prompts"]]
        started = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        print(time.perf_counter() - started, file=answers, flush=True)


if __name__ == "__main__":
    main()
