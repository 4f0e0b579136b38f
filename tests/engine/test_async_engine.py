"""The asyncio face and the engine's process: streams, aborts, deaths."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
from crowding import patience
from engine_streams import SETTINGS, read, settled, submit

from engine.async_engine import AsyncLLMEngine
from engine.config import EngineConfig
from engine.errors import ConfigError, InvalidRequestError, ModelLoadError, OverloadedError, RequestTimeoutError
from engine.sampling_params import SamplingParams


@pytest.fixture
async def engine() -> AsyncIterator[AsyncLLMEngine]:
    engine = AsyncLLMEngine(EngineConfig(**SETTINGS))
    await engine.start()
    yield engine
    await engine.shutdown()


async def test_tokens_stream_one_by_one_and_add_up(engine: AsyncLLMEngine) -> None:
    num_outputs, text = 0, ""
    async for output in submit(engine, "a"):
        num_outputs += 1
        text += output.outputs[0].text
    assert num_outputs > 20
    assert engine.tokenizer.decode((await read(submit(engine, "b")))[1]) == text


async def test_requests_that_arrive_while_others_decode_join_the_batch(engine: AsyncLLMEngine) -> None:
    alone = engine.stats.steps_total
    await read(submit(engine, "alone"))
    steps_alone = engine.stats.steps_total - alone
    finished: list[str] = []

    async def run(name: str) -> None:
        stream = submit(engine, name)
        async for _ in stream:
            if name == "late" and "first token of late" not in finished:
                finished.append("first token of late")
        finished.append(name)

    before = engine.stats.steps_total
    early = [asyncio.create_task(run(f"early {i}")) for i in range(7)]
    while engine.stats.num_running < 7:
        await asyncio.sleep(0.001)
    await run("late")
    await asyncio.gather(*early)
    assert finished[0] == "first token of late"
    assert engine.stats.steps_total - before < 8 * steps_alone / 2


async def test_200_clients_that_leave_at_random_moments_leave_nothing_behind(engine: AsyncLLMEngine) -> None:
    rng = random.Random(1)
    memory = psutil.Process(engine._process.pid)

    async def leave_early(name: str) -> None:
        await asyncio.sleep(rng.random() * 0.5)
        stream = submit(engine, name, prompt=f"{name}: tell me a story about numbers. " * rng.randint(1, 8), max_tokens=200)
        num_wanted = rng.randint(0, 6)
        if num_wanted:
            async for _ in stream:
                num_wanted -= 1
                if not num_wanted:
                    break
        stream.abort()

    async def crowd(kind: str) -> None:
        await asyncio.gather(*(leave_early(f"{kind} {i}") for i in range(100)))
        await settled(engine)

    await crowd("first")
    resident = memory.memory_info().rss
    await crowd("second")
    assert engine.num_unfinished == 0
    assert engine.stats.num_running == engine.stats.num_waiting == engine.stats.blocks_referenced == 0
    assert engine.stats.blocks_free + engine.stats.blocks_cached == engine.stats.blocks_total
    assert memory.memory_info().rss < resident * 1.05


async def test_a_slow_reader_gets_everything_merged(engine: AsyncLLMEngine) -> None:
    expected = await read(submit(engine, "quick"))
    slow = submit(engine, "slow", logprobs=0)
    while engine.num_unfinished:
        await asyncio.sleep(0.01)
    outputs = [output async for output in slow]
    assert len(outputs) == 1
    assert (outputs[0].outputs[0].text, outputs[0].outputs[0].token_ids) == expected
    assert len(outputs[0].outputs[0].logprobs or []) == 40


async def test_a_request_ends_at_its_deadline_whether_it_runs_or_waits_and_the_others_go_on(engine: AsyncLLMEngine) -> None:
    expected = await read(submit(engine, "undisturbed"))
    prompt = engine.tokenizer.encode("Once upon a time")
    long = SamplingParams(temperature=0.0, max_tokens=500, ignore_eos=True)
    running = engine.generate(prompt, long, "running", timeout=0.3)
    waiting = [engine.generate(prompt, long, f"waiting {i}", priority=1, timeout=0.1) for i in range(40)]
    other = submit(engine, "other")
    finished = engine.generate(prompt, SamplingParams(max_tokens=1), "finished", timeout=(soon := patience(0.5)))
    for stream in (running, *waiting):
        with pytest.raises(RequestTimeoutError, match="reached its timeout before it was finished"):
            await read(stream)
    assert await read(other) == expected
    await asyncio.sleep(soon)
    assert len((await read(finished))[1]) == 1
    await settled(engine)
    assert engine.num_unfinished == engine.stats.num_running == engine.stats.num_waiting == engine.stats.blocks_referenced == 0
    with pytest.raises(InvalidRequestError, match="timeout must be a number of seconds above 0"):
        engine.generate(prompt, long, "never", timeout=0.0)


async def test_more_requests_than_may_wait_are_refused_and_those_that_wait_are_served() -> None:
    engine = AsyncLLMEngine(EngineConfig(**SETTINGS | {"max_num_seqs": 1}, max_waiting_requests=3))
    await engine.start()
    try:
        expected = await read(submit(engine, "undisturbed"))
        streams = [submit(engine, f"{i}") for i in range(3)]
        with pytest.raises(OverloadedError, match="3 requests are waiting, which is as many as may: try again"):
            submit(engine, "refused")
        assert engine.num_unfinished == 3
        async for _ in streams[0]:
            break  # it runs, and waits no more
        streams.append(submit(engine, "taken"))
        streams[1].abort()
        streams.append(submit(engine, "taken too"))
        for stream in streams[2:]:
            assert await read(stream) == expected
    finally:
        await engine.shutdown()


async def test_bad_requests_are_refused_before_the_engine_hears_of_them(engine: AsyncLLMEngine) -> None:
    with pytest.raises(InvalidRequestError, match="512 tokens") as caught:
        submit(engine, "long", "word " * 600)
    assert caught.value.code == "context_length_exceeded"
    with pytest.raises(InvalidRequestError, match="vocabulary"):
        engine.generate([10**6], SamplingParams(), "unknown token")
    with pytest.raises(InvalidRequestError, match="or the offline LLM"):
        submit(engine, "a function", logits_processors=(lambda output, row: row,))
    assert engine.num_unfinished == 0


async def test_processes_are_named_and_the_api_side_never_imports_pytorch() -> None:
    script = (
        "import asyncio, sys, psutil\n"
        "from octavo import AsyncLLMEngine, EngineConfig\n"
        "async def main():\n"
        "    engine = AsyncLLMEngine(EngineConfig(max_model_len=128, num_gpu_blocks_override=8))\n"
        "    await engine.start()\n"
        "    print(psutil.Process(engine._process.pid).cmdline()[0].strip(), 'torch' in sys.modules)\n"
        "    await engine.shutdown()\n"
        "asyncio.run(main())\n"
    )
    result = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", script], capture_output=True, text=True, timeout=120)
    assert result.stdout.strip() == "octavo: engine False"


@pytest.mark.parametrize(
    ("settings", "error", "words"),
    [
        ({"num_gpu_blocks_override": 2, "max_model_len": 512}, ConfigError, "holds 32 tokens"),
        ({"max_model_len": 99999}, ConfigError, "context length of 8192"),
        ({"model": "/no/such/model.gguf"}, ModelLoadError, "/no/such/model.gguf"),
        ({"device": "cuda"}, ConfigError, "no CUDA device"),
    ],
)
async def test_settings_that_cannot_work_end_in_one_clear_error(settings: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        await AsyncLLMEngine(EngineConfig(**settings)).start()


async def test_a_beam_search_is_refused_as_soon_as_it_is_known_not_to_fit() -> None:
    engine = AsyncLLMEngine(EngineConfig(**{**SETTINGS, "num_gpu_blocks_override": 32}))
    early = submit(engine, "early", use_beam_search=True, n=8, max_tokens=100)  # nobody knows the size of the pool yet
    fitting = submit(engine, "fitting", use_beam_search=True, n=2, max_tokens=10)
    await engine.start()
    with pytest.raises(InvalidRequestError, match="need 56 KV blocks of 16 tokens, but there are 32"):
        await read(early)
    with pytest.raises(InvalidRequestError, match="need 56 KV blocks"):
        submit(engine, "late", use_beam_search=True, n=8, max_tokens=100)
    assert sorted([completion.index async for output in fitting for completion in output.outputs]) == [0, 1]
    assert engine.num_unfinished == 0
    await engine.shutdown()


async def test_swapping_in_the_engines_process_changes_no_stream_and_is_counted() -> None:
    settings = {**SETTINGS, "max_model_len": 128, "enable_prefix_caching": False}
    texts = []
    for more in ({}, {"num_gpu_blocks_override": 8, "swap_space": 64 << 20, "preemption_mode": "swap"}):
        engine = AsyncLLMEngine(EngineConfig(**{**settings, **more}))
        await engine.start()
        assert (engine.stats.host_blocks_total > 0) == bool(more)
        streams = [submit(engine, f"s{i}", prompt=f"Tell me about the number {i}", max_tokens=30) for i in range(6)]
        texts.append(await asyncio.gather(*(read(stream) for stream in streams)))
        await settled(engine)
        stats = engine.stats
        await engine.shutdown()
    assert texts[0] == texts[1]
    assert stats.preemptions_swap_total == stats.preemptions_total > 0
    assert stats.num_swapped == stats.host_blocks_held == 0
