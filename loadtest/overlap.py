"""What scheduling a step while the one before it runs wins, and what it costs: `python -m loadtest.overlap`.

Two engines, with and without, take turns, so that both see the same machine. Measured through the engine's process, as a server would:
tokens a second over all sequences, and the time to the first token of a short request that joins while the others decode.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time

from engine.async_engine import AsyncLLMEngine
from engine.config import EngineConfig
from engine.sampling_params import SamplingParams


async def _read(engine: AsyncLLMEngine, name: str, max_tokens: int) -> float:
    """Seconds to the first token of one request, which is read to its end."""
    prompt = engine.tokenizer.encode(f"{name}: once upon a time there was a little fox who lived near the sea.")
    started, first = time.perf_counter(), 0.0
    stream = engine.generate(prompt, SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True), name)
    try:
        async for _ in stream:
            first = first or time.perf_counter() - started
    finally:
        stream.abort()
    return first


async def _measure(engine: AsyncLLMEngine, round_: int, num_seqs: int, max_tokens: int) -> tuple[float, float]:
    """(tokens a second of `num_seqs` sequences, median seconds to the first token of those that join them)."""
    started = time.perf_counter()
    await asyncio.gather(*(_read(engine, f"{round_} {i}", max_tokens) for i in range(num_seqs)))
    rate = num_seqs * max_tokens / (time.perf_counter() - started)
    others = [asyncio.create_task(_read(engine, f"{round_} other {i}", 4 * max_tokens)) for i in range(num_seqs)]
    await asyncio.sleep(0.1 + 0.02 * num_seqs)  # their prompts are computed by then
    firsts = []
    for _ in range(8):
        await asyncio.sleep(0.013 * (1 + len(firsts) % 3))  # at any moment of a step
        firsts.append(await _read(engine, f"{round_} joins {len(firsts)}", 1))
    assert not any(task.done() for task in others), "the others ended before those that join: give them more tokens"
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    await engine.check()  # returns once the engine has heard of it
    return rate, statistics.median(firsts)


async def _run(model: str | None, num_rounds: int, max_tokens: int) -> None:
    engines = {on: AsyncLLMEngine(EngineConfig(model=model, max_model_len=512, async_scheduling=on)) for on in (False, True)}
    for engine in engines.values():
        await engine.start()
    print("| sequences | tokens/s off | on | on : off | first token of one that joins, off | on | on : off |\n| " + "--- | " * 7)
    for num_seqs in (1, 8, 32):
        results: dict[bool, list[tuple[float, float]]] = {False: [], True: []}
        for round_ in range(num_rounds + 1):
            for on in (False, True) if round_ % 2 else (True, False):
                results[on].append(await _measure(engines[on], round_, num_seqs, max_tokens))
        off, on = ([list(column) for column in zip(*results[key][1:], strict=True)] for key in (False, True))  # the first warms up
        cells = [f"{num_seqs}"]
        for column, scale, unit in ((0, 1, ""), (1, 1000, " ms")):
            cells += [f"{scale * statistics.median(side[column]):.1f}{unit}" for side in (off, on)]
            # Rounds are pairs: what else the machine does hits both of a pair more or less alike.
            cells.append(f"{statistics.median(b / a for a, b in zip(off[column], on[column], strict=True)):.2f}")
        print("| " + " | ".join(cells) + " |", flush=True)
    for engine in engines.values():
        await engine.shutdown()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="none: the default model")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=60)
    args = parser.parse_args()
    asyncio.run(_run(args.model, args.rounds, args.max_tokens))


if __name__ == "__main__":
    main()
