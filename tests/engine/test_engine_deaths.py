"""What becomes of requests when the engine's process dies or hangs."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterable
from pathlib import Path
from typing import Any

import psutil
import pytest
from engine_streams import SETTINGS, read, settled, submit

from engine.async_engine import AsyncLLMEngine
from engine.config import EngineConfig
from engine.errors import EngineDeadError, RequestFailedError
from engine.request_stream import RequestStream


@pytest.fixture
async def engine() -> AsyncIterator[AsyncLLMEngine]:
    engine = AsyncLLMEngine(EngineConfig(**SETTINGS))
    await engine.start()
    yield engine
    await engine.shutdown()


GREEDY: dict[str, Any] = {"temperature": 0.0}
SEEDED: dict[str, Any] = {"temperature": 0.9, "seed": 3, "frequency_penalty": 0.5, "bad_words": ("the", "duck")}


async def test_streams_go_on_without_a_gap_or_a_repeat_when_the_engine_is_killed(engine: AsyncLLMEngine) -> None:
    ducks = [(f"{i} little ducks went out one day", params) for params in (GREEDY, SEEDED) for i in range(3)]
    undisturbed = [submit(engine, f"undisturbed {i}", prompt, **params) for i, (prompt, params) in enumerate(ducks)]
    expected = [await read(stream) for stream in undisturbed]

    async def read_and_kill(i: int) -> tuple[str, list[int]]:
        text, token_ids = "", []
        prompt, params = ducks[i]
        async for output in submit(engine, f"disturbed {i}", prompt, **params):
            text += output.outputs[0].text
            token_ids += output.outputs[0].token_ids
            if i == 0 and len(token_ids) in (7, 20):
                os.kill(engine._process.pid, signal.SIGKILL)
        return text, token_ids

    assert await asyncio.gather(*(read_and_kill(i) for i in range(len(ducks)))) == expected
    assert engine.num_restarts == 2
    await settled(engine)


@pytest.mark.timeout(90)
async def test_what_is_sent_to_a_dead_engine_before_its_death_is_noticed_blocks_nobody(engine: AsyncLLMEngine) -> None:
    expected = await read(submit(engine, "undisturbed"))
    leaving = submit(engine, "leaving")
    os.kill(engine._process.pid, signal.SIGKILL)
    # Keeps the event loop from noticing, while the sockets lose their peer.
    time.sleep(0.5)  # noqa: ASYNC251
    late = submit(engine, "late")
    await leaving.aclose()
    with pytest.raises(EngineDeadError, match="being started"):
        await engine.check()
    assert await read(late) == expected
    assert engine.num_restarts == 1
    await settled(engine)


async def test_a_request_that_kills_the_engine_ends_and_those_beside_it_go_on(engine: AsyncLLMEngine, monkeypatch: Any) -> None:
    prompts = [f"word {i} " * 100 for i in range(3)]
    expected = [await read(submit(engine, f"undisturbed {i}", prompt, max_tokens=5)) for i, prompt in enumerate(prompts)]
    streams = [
        submit(engine, "innocent 0", prompts[0], max_tokens=5),
        submit(engine, "innocent 1", prompts[1], max_tokens=5),
        submit(engine, "poison", "word " * 400),
        submit(engine, "innocent 2", prompts[2], max_tokens=5),
    ]
    poison = streams.pop(2)
    hand_over = engine._submit

    def hand_over_and_die(under_way: Iterable[RequestStream]) -> None:
        """Stands in for a request whose first step ends the engine."""
        under_way = list(under_way)
        hand_over(under_way)
        if poison in under_way:
            os.kill(engine._process.pid, signal.SIGKILL)

    monkeypatch.setattr(engine, "_submit", hand_over_and_die)
    os.kill(engine._process.pid, signal.SIGKILL)
    with pytest.raises(RequestFailedError, match="each time it worked on this request"):
        await read(poison)
    assert [await read(stream) for stream in streams] == expected
    assert engine.num_restarts == 3
    await settled(engine)


async def test_a_hung_step_is_a_death() -> None:
    engine = AsyncLLMEngine(EngineConfig(**SETTINGS, step_timeout=2.0))
    await engine.start()
    expected = await read(submit(engine, "undisturbed"))
    text, token_ids, stopped = "", [], False
    async for output in submit(engine, "disturbed"):
        text += output.outputs[0].text
        token_ids += output.outputs[0].token_ids
        if len(token_ids) >= 5 and not stopped:
            stopped = True
            os.kill(engine._process.pid, signal.SIGSTOP)
    assert (text, token_ids) == expected
    assert engine.num_restarts >= 1  # on a crowded machine a step may take as long as a hung one
    await engine.shutdown()


WATCHED_SILENCE = """
import asyncio
from engine.watchdog import Watchdog

async def main():
    bites = []
    watchdog = Watchdog(0.8, busy=lambda: True, bite=lambda: bites.append(1))
    task = asyncio.create_task(watchdog.watch())
    print("begun", flush=True)
    await asyncio.sleep(0.3)  # stopped meanwhile
    await asyncio.sleep(0.1)
    print(len(bites))
    await asyncio.sleep(1)
    print(len(bites))

asyncio.run(main())
"""


def test_time_in_which_everything_was_stopped_is_not_held_against_the_engine() -> None:
    with subprocess.Popen([sys.executable, "-c", WATCHED_SILENCE], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        process.send_signal(signal.SIGSTOP)
        time.sleep(1.0)
        process.send_signal(signal.SIGCONT)
        assert process.stdout.read().split() == ["0", "1"]


async def test_the_engine_leaves_at_its_parents_death_whatever_it_does() -> None:
    script = (
        "import asyncio\n"
        "from octavo import AsyncLLMEngine, EngineConfig, SamplingParams\n"
        "async def main():\n"
        "    engine = AsyncLLMEngine(EngineConfig(max_model_len=8192, num_gpu_blocks_override=512, max_num_batched_tokens=8192))\n"
        "    await engine.start()\n"
        "    stream = engine.generate([1000] * 8000, SamplingParams(max_tokens=5), 'long')\n"  # one step, of several seconds
        "    print(engine._process.pid, engine._process._directory, flush=True)\n"
        "    await asyncio.sleep(100)\n"
        "asyncio.run(main())\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, directory = (await asyncio.to_thread(parent.stdout.readline)).split()
        child = psutil.Process(int(pid))
        await asyncio.sleep(0.3)
        parent.kill()
        await asyncio.to_thread(child.wait, 5)
    assert not Path(directory).exists()
