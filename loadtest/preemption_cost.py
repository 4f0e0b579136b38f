"""What a preemption costs the request that it hits: swapped out and in, or computed again.

    python -m loadtest.preemption_cost [--model MODEL] [--contexts 64,256,1024] [--repeats N]

For each length of context, a request decodes alone, is preempted between two tokens, and resumes at once. Shown is the time to its next
token beyond that of an undisturbed step, in milliseconds: the median, with the least and the most in brackets. Prefix caching is off, so
that computing again means all of it. The last column is what `--preemption-mode auto` would choose by the speeds measured meanwhile.
"""

from __future__ import annotations

import argparse
import statistics
import time

from engine.llm import LLM
from engine.messages import EngineRequest
from engine.sampling_params import SamplingParams


def new_llm(model: str | None, mode: str, max_model_len: int) -> LLM:
    return LLM(
        model,
        max_model_len=max_model_len,
        num_gpu_blocks_override=-(-max_model_len // 16),
        swap_space=2 << 30,
        preemption_mode=mode,
        enable_prefix_caching=False,
    )


def timed_step(llm: LLM, num_tokens: int = 1) -> float:
    """Seconds until the engine has generated so many tokens."""
    started = time.perf_counter()
    while num_tokens:
        num_tokens -= len(llm.engine.step())
    return time.perf_counter() - started


def lost_seconds(llm: LLM, context: int, repeats: int) -> list[float]:
    """Of each of `repeats` preemptions, the time beyond an undisturbed step."""
    params = SamplingParams(temperature=0, ignore_eos=True)
    prompt = [100 + i % 1000 for i in range(context)]
    request = EngineRequest(request_id="probe", prompt_token_ids=prompt, params=params, seed=0, max_tokens=3 * repeats + 10)
    llm.engine.add_request(request)
    timed_step(llm, num_tokens=2)
    lost = []
    for _ in range(repeats + 1):
        undisturbed = statistics.median(timed_step(llm) for _ in range(2))
        scheduler = llm.engine.scheduler
        scheduler._preempt(scheduler.running[-1])
        lost.append(timed_step(llm) - undisturbed)
    llm.engine.abort_requests(["probe"])
    return lost[1:]  # the first finds host memory that was never touched


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default=None)
    parser.add_argument("--contexts", default="64,256,1024")
    parser.add_argument("--repeats", type=int, default=5)
    args = parser.parse_args()
    contexts = [int(context) for context in args.contexts.split(",")]
    max_model_len = max(contexts) + 3 * args.repeats + 16

    engines = {mode: new_llm(args.model, mode, max_model_len) for mode in ("swap", "recompute")}
    measured = engines["swap"].engine._preemption
    print(f"{'context':>8}  {'swap, ms':>26}  {'recompute, ms':>26}  auto")
    for context in contexts:
        cells = []
        for llm in engines.values():
            lost = [1000 * seconds for seconds in lost_seconds(llm, context, args.repeats)]
            cells.append(f"{statistics.median(lost):.1f} ({min(lost):.1f} to {max(lost):.1f})")
        measured.mode = "auto"
        choice = "swap" if measured.prefers_swap(context) else "recompute"
        measured.mode = "swap"
        print(f"{context:>8}  {cells[0]:>26}  {cells[1]:>26}  {choice}")


if __name__ == "__main__":
    main()
