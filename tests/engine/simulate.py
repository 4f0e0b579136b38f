"""A long simulation: `python tests/engine/simulate.py --steps 1000000`.

Random traffic through the real scheduler and block manager (simulation.py), run after run, each with an engine of its own and a seed one
above that of the run before. After every event all invariants are checked in full, and every token is compared with the one that the
request gets alone. Prints the seed it begins with; where something is wrong, the run and the step, and the command that shows it again.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import time
import traceback
from collections import Counter

from simulation import Simulation, run

NUM_TURNS = 300  # of one run: some 2,000 steps
PROGRESS_SECONDS = 10.0


def simulate(num_steps: int, first_seed: int) -> bool:
    """At least `num_steps` steps. Returns whether all was right."""
    print(f"seed {first_seed}", flush=True)
    started = reported = time.monotonic()
    totals: Counter[str] = Counter()
    while totals["steps"] < num_steps:
        seed = first_seed + totals["runs"]
        try:
            totals.update(_counts(run(seed, NUM_TURNS)))
        except Exception as error:
            traceback.print_exc()
            print(f"\nFAILED: {type(error).__name__}: {error}")
            print("\n".join(getattr(error, "__notes__", [])))
            print(f"to see it again: python {sys.argv[0]} --seed {seed} --steps 1")
            return False
        if time.monotonic() - reported > PROGRESS_SECONDS:
            reported = time.monotonic()
            print(f"{totals['steps']:,} steps, {totals['steps'] / (reported - started):,.0f} a second", flush=True)
    seconds = time.monotonic() - started
    print(f"no invariant broken in {seconds:.0f} s ({totals['steps'] / seconds:,.0f} steps a second):")
    for name, count in totals.items():
        print(f"{count:>14,} {name}")
    return True


def _counts(simulation: Simulation) -> dict[str, int]:
    scheduler, manager, requests = simulation.scheduler, simulation.manager, simulation.requests.values()
    return {
        "runs": 1,
        "steps": simulation.num_steps,
        "times that all invariants were checked": simulation.num_checks,
        "sequences": len(requests),
        "of these, beams": sum(tracked.request.params.use_beam_search for tracked in requests),
        "tokens": sum(len(tracked.token_ids) for tracked in requests),
        "aborts": sum(tracked.finish_reason == "abort" for tracked in requests),
        "preemptions": scheduler.num_preemptions,
        "of these, swaps": scheduler.num_swaps,
        "blocks swapped out or in": simulation.num_swapped_blocks,
        "blocks copied on write": simulation.num_copies,
        "prompt tokens found in the prefix cache": scheduler.num_prefix_hits,
        "of these, in host memory": scheduler.num_host_hits,
        "cached blocks evicted": manager.num_evictions,
        "host blocks evicted": simulation.host.num_evictions,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=1_000_000, help="stop after the run in which there are so many")
    parser.add_argument("--seed", type=int, help="of the first run; none: a random one")
    args = parser.parse_args()
    sys.exit(0 if simulate(args.steps, secrets.randbelow(1 << 31) if args.seed is None else args.seed) else 1)


if __name__ == "__main__":
    main()
