"""What constrained requests cost the others in their batch: `python -m loadtest.structured_cost`.

Batches of as many sequences take turns on one engine, with and without constraints on some of them; the batch's step is everyone's next
token. Given are the wall time of a step, and the time that the process computed on all its threads, which other work on the machine
touches less. A ratio is the median over pairs of rounds, next to each other in time, of the median step.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import NamedTuple

from engine.llm import LLM
from engine.sampling_params import SamplingParams
from engine.structured_outputs import StructuredOutputs

# Each goes on for longer than a round.
CONSTRAINTS = {
    "persons": StructuredOutputs(
        json={
            "type": "array",
            "minItems": 1000,
            "items": {
                "type": "object",
                "properties": {
                    "name": {"type": "string", "maxLength": 40},
                    "age": {"type": "integer", "minimum": 0, "maximum": 120},
                    "email": {"type": "string", "format": "email", "maxLength": 40},
                    "role": {"enum": ["guest", "member", "owner"]},
                },
                "required": ["name", "age", "email", "role"],
                "additionalProperties": False,
            },
        }
    ),
    "any JSON": StructuredOutputs(json={"type": "array", "minItems": 1000, "items": {}}),
    "regex": StructuredOutputs(regex="([A-Z][a-z]{1,12} ){1000}"),
    "tool call": StructuredOutputs(grammar='start: TEXT "<tool_call>"\nTEXT: /(?s:.*)/ & ~/(?s:.*)<tool_call>(?s:.*)/'),
}


class StepTime(NamedTuple):
    wall: float  # milliseconds
    computing: float


def median_step(llm: LLM, num_seqs: int, num_constrained: int, constraint: StructuredOutputs, num_steps: int) -> StepTime:
    """The time of a step in which `num_seqs` sequences decode, of which so many are constrained."""
    prompt = llm.tokenizer.encode("Here is what you asked for:\n")
    names = []
    for i in range(num_seqs):
        held = i < num_constrained
        params = SamplingParams(seed=i, max_tokens=num_steps + 40, ignore_eos=not held, structured_outputs=constraint if held else None)
        (request,) = llm._builder.build(f"{i}", prompt, params)
        llm.engine.add_request(request)
        names.append(request.request_id)
    for _ in range(10 + num_seqs * len(prompt) // llm.config.token_budget):
        llm.engine.step()
    wall, computing = [], []
    for _ in range(num_steps):
        started, computed = time.perf_counter(), time.process_time()
        outputs = llm.engine.step()
        wall.append(1e3 * (time.perf_counter() - started))
        computing.append(1e3 * (time.process_time() - computed))
        assert len(outputs) == num_seqs, "a sequence ended too soon"
    llm.engine.abort_requests(names)
    return StepTime(statistics.median(wall), statistics.median(computing))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--threads", type=int, help="none: all cores; one: threads that wait for each other compute nothing meanwhile")
    parser.add_argument("--kinds", nargs="+", choices=CONSTRAINTS, default=[*CONSTRAINTS])
    args = parser.parse_args()
    llm = LLM(max_model_len=512, max_num_seqs=64, num_threads=args.threads)
    print("| constraint | sequences | constrained | step without, ms | with | ratio | computing without, ms | with | ratio |")
    print("| " + "--- | " * 9)
    for kind in args.kinds:
        for num_seqs, num_constrained in ((1, 1), (32, 1), (32, 8), (32, 32)):
            pairs = []
            for round_ in range(args.rounds + 1):
                order = (0, num_constrained) if round_ % 2 else (num_constrained, 0)
                times = {n: median_step(llm, num_seqs, n, CONSTRAINTS[kind], args.steps) for n in order}
                pairs.append((times[0], times[num_constrained]))
            cells = [kind, f"{num_seqs}", f"{num_constrained}"]
            for column in range(2):
                free, held = zip(*((a[column], b[column]) for a, b in pairs[1:]), strict=True)  # the first warms up
                ratio = statistics.median(b / a for a, b in zip(free, held, strict=True))
                cells += [f"{statistics.median(free):.2f}", f"{statistics.median(held):.2f}", f"{ratio:.3f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
