"""AsyncLLMEngine: the asyncio face of the engine. It owns the engine process and fans its outputs out to requests."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
from collections.abc import Iterable
from collections.abc import Sequence as SequenceOf
from typing import Any

from engine.admission import Admission
from engine.config import EngineConfig
from engine.embedding_processor import EmbeddingProcessor
from engine.errors import (
    ConfigError,
    DiskFullError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    OctavoError,
    RequestFailedError,
    RequestTimeoutError,
)
from engine.grammar.compiler import GrammarCompiler
from engine.loader.resolve import resolve_model
from engine.logits_processors import LogitsProcessorRegistry
from engine.messages import (
    AbortRequests,
    AddRequest,
    Call,
    CallResult,
    EngineFailed,
    EngineReady,
    EngineRequest,
    SequenceOutput,
    StepOutputs,
)
from engine.model_config import resolve_max_model_len, resolve_pooling
from engine.output_processor import OutputProcessor
from engine.outputs import EmbeddingOutput, RequestOutput
from engine.pooling_params import PoolingParams
from engine.process import EngineProcess, socket_directory
from engine.request_builder import RequestBuilder
from engine.request_stream import RequestStream
from engine.sampling_params import SamplingParams
from engine.stats import EngineStats
from engine.suspects import Suspects
from engine.watchdog import Watchdog

logger = logging.getLogger("octavo.engine")

MAX_FAILED_STARTS = 3  # in a row, after the engine has served once; the first start of all must succeed


class AsyncLLMEngine:
    """Starts the engine process at once, and serves requests once it is ready.

        engine = AsyncLLMEngine(EngineConfig())
        await engine.start()
        async for output in engine.generate(engine.tokenizer.encode("Once upon a time"), SamplingParams(max_tokens=32), "my-request"):
            print(output.outputs[0].text, end="")

    When the engine process dies, or hangs, a new one is started and running requests go on from the tokens that they have. Raises
    ConfigError or ModelLoadError when the settings cannot work, and DiskFullError when the engine's sockets have no place.
    """

    def __init__(self, config: EngineConfig) -> None:
        self.config = config
        self._directory = socket_directory()
        self._process = EngineProcess(config, self._directory.name)  # first: it imports PyTorch while this process reads the tokenizer
        try:
            self.source = resolve_model(config.model, config.revision, config.load_format, config.seed)
            self.model_config = self.source.config()
            self.max_model_len = resolve_max_model_len(config, self.model_config)
            self.tokenizer = self.source.tokenizer()
        except BaseException:
            self._process.stop(patience=0.0)
            self._directory.cleanup()
            raise
        self.stats = EngineStats()
        self.num_restarts = 0
        vocab_size = self.model_config.vocab_size
        self.grammars = GrammarCompiler(lambda: self.tokenizer, vocab_size, self.model_config.eos_token_ids)
        self._builder = RequestBuilder(
            self.max_model_len,
            vocab_size,
            config.seed,
            self.tokenizer,
            max_num_seqs=config.seq_budget,
            grammars=self.grammars,
            pooling=resolve_pooling(config, self.model_config),
            hidden_size=self.model_config.hidden_size,
            processors=LogitsProcessorRegistry(config.logits_processors),
        )
        self._admission = Admission(config.max_waiting_requests, config.max_waiting_tokens)
        self._streams: dict[str, RequestStream[Any]] = {}  # by the engine's id of each sequence
        self._suspects = Suspects()
        self._watchdog = Watchdog(config.step_timeout, busy=self._is_busy, bite=self._end_hung_step)
        self._calls: dict[int, asyncio.Future[Any]] = {}
        self._call_ids = itertools.count()
        self._ready = asyncio.Event()
        self._failure: OctavoError | None = None
        self._closing = False
        self._asleep = False
        self._stream_ended = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set() and not self._closing

    @property
    def failure(self) -> OctavoError | None:
        """Why the engine cannot be brought back, once it has been given up."""
        return self._failure

    async def start(self) -> None:
        """Returns when the engine serves. Raises ConfigError, ModelLoadError or EngineDeadError when it cannot."""
        self._task = asyncio.create_task(self._run())
        ready = asyncio.create_task(self._ready.wait())
        await asyncio.wait((self._task, ready), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            ready.cancel()
            await self.shutdown()  # nobody else will: to the caller this engine has never been there
            raise self._failure or EngineDeadError("the engine ended before it was ready")

    def generate(
        self,
        prompt_token_ids: SequenceOf[int],
        params: SamplingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
        timeout: float | None = None,
    ) -> RequestStream[RequestOutput]:
        """Submit a request; iterate over what it returns for the outputs as they come, each holding what is new.

        It ends with RequestTimeoutError if it is not finished in `timeout` seconds, whether it waits or runs by then. Raises at once
        InvalidRequestError for what can never be served, OverloadedError when too many requests wait, and EngineDeadError when the
        engine has been given up.
        """
        self._check_open()
        if params.logits_processors:
            raise InvalidRequestError(
                "logits_processors are functions of this process, and the engine runs in another one: use named ones, or the offline LLM",
                param="logits_processors",
            )
        sequences = self._builder.build(request_id, prompt_token_ids, params, priority, cache_salt, tenant)
        processor = OutputProcessor(request_id, sequences[0].prompt_token_ids, params, sequences, self.tokenizer)
        stream = RequestStream(processor, self._abort)
        self._accept(stream, sequences, timeout)
        return stream

    def embed(
        self,
        prompt_token_ids: SequenceOf[int],
        params: PoolingParams,
        request_id: str,
        *,
        priority: int = 0,
        cache_salt: str | None = None,
        tenant: str = "",
        timeout: float | None = None,
    ) -> RequestStream[EmbeddingOutput]:
        """Submit a prompt for its vector, which is the one output of what is returned. Raises what `generate` raises."""
        self._check_open()
        request = self._builder.build_pooled(request_id, prompt_token_ids, params, priority, cache_salt, tenant)
        stream = RequestStream(EmbeddingProcessor(request), self._abort)
        self._accept(stream, [request], timeout)
        return stream

    async def call(self, method: str) -> Any:
        """Run a utility of EngineCore between two steps. Raises OctavoError with its message when it fails.

        EngineDeadError: there is no engine at the moment, as it is being started.
        """
        call_id = next(self._call_ids)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._calls[call_id] = future
        if not self._process.send(Call(call_id, method)):
            del self._calls[call_id]
            raise EngineDeadError("the engine is being started: try again")
        return await future

    async def check(self) -> None:
        """Have the engine verify all its invariants. Raises OctavoError if one is broken."""
        await self.call("check")

    async def reset_prefix_cache(self) -> None:
        await self.call("reset_prefix_cache")

    async def sleep(self) -> None:
        """Give the KV cache's memory back until `wake_up`. Raises OctavoError while requests run."""
        self._asleep = True
        try:
            await self.call("sleep")
        except OctavoError:
            self._asleep = False
            raise

    async def wake_up(self) -> None:
        """Raises OctavoError when the memory is not to be had any more: the engine sleeps on."""
        await self.call("wake_up")
        self._asleep = False

    @property
    def num_unfinished(self) -> int:
        """Sequences whose end has not come back yet."""
        return len(self._streams)

    async def shutdown(self, grace_period: float = 0.0, patience: float = 2.0) -> None:
        """Take no new requests, let running ones finish for up to `grace_period` seconds, end the engine process.

        The process is killed when it has not left by itself within `patience` seconds.
        """
        self._closing = True
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._all_done(), grace_period)
        self._fail_all(EngineDeadError("the server is shutting down"))
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await asyncio.to_thread(self._process.stop, patience)
        self._directory.cleanup()

    # -- the engine process ----------------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        watchdog = asyncio.create_task(self._watchdog.watch())
        try:
            await self._tend()
        except Exception as error:
            logger.exception("the engine's face in this process failed")
            self._give_up(None, f"internal error: {error}")
        finally:
            watchdog.cancel()

    async def _tend(self) -> None:
        """Read the engine's messages; when it dies, start another and hand it the running requests."""
        failed_starts = 0
        while True:
            failure: EngineFailed | None = None
            async for message in self._process.messages():
                match message:
                    case StepOutputs(outputs, stats):
                        if stats.steps_total != self.stats.steps_total:
                            self._watchdog.pet()
                        self.stats = stats
                        for output in outputs:
                            self._deliver(output)
                    case EngineReady():
                        failed_starts = 0
                        self._on_ready(message)
                    case CallResult(call_id, value, error):
                        self._finish_call(call_id, value, error)
                    case EngineFailed():
                        failure = message
            was_ready = self._ready.is_set()
            self._ready.clear()
            failed_starts += not was_ready
            reason = failure.message if failure is not None else self._process.killed_because or "the engine process ended without a word"
            if failed_starts and (self.num_restarts == 0 or failed_starts >= MAX_FAILED_STARTS):
                self._give_up(failure, reason)
                return
            self.num_restarts += 1
            logger.error("%s: starting it again, %d sequences go on from where they are", reason, len(self._streams))
            self._fail_calls(reason)
            if was_ready:
                self._drop_cause()
            await asyncio.to_thread(self._process.stop)
            await asyncio.sleep(failed_starts)  # what kept it from starting may pass
            self._process = EngineProcess(self.config, self._directory.name)

    def _is_busy(self) -> bool:
        return self._ready.is_set() and bool(self._streams) and not self._asleep

    def _end_hung_step(self) -> None:
        self._process.kill(f"the engine had work and finished no step in {self.config.step_timeout:g} s (--step-timeout)")

    def _on_ready(self, ready: EngineReady) -> None:
        num_tokens = ready.num_blocks * ready.block_size
        logger.info(
            "KV cache: %d blocks of %d tokens, %d tokens in all, %.1f sequences of %d tokens; %d blocks in host memory; kernels: %s; "
            "engine ready in %.1f s",
            ready.num_blocks,
            ready.block_size,
            num_tokens,
            num_tokens / self.max_model_len,
            self.max_model_len,
            ready.num_host_blocks,
            ready.kernels,
            ready.load_seconds,
        )
        self.stats = EngineStats(blocks_total=ready.num_blocks, blocks_free=ready.num_blocks, host_blocks_total=ready.num_host_blocks)
        self._builder.learn_pool(ready.num_blocks, ready.block_size)
        self._refuse_wide_searches()
        if self._asleep:
            self._process.send(Call(next(self._call_ids), "sleep"))  # its predecessor died asleep
        self._watchdog.pet()
        self._ready.set()
        # Requests that came while it loaded, or that its predecessor was working on.
        self._submit(self._suspects.sort(self._under_way()))

    def _submit(self, streams: Iterable[RequestStream[Any]]) -> None:
        """Hand requests to the engine, as they are by now."""
        for stream in streams:
            for sequence_id in stream.processor.unfinished_ids:
                self._process.send(AddRequest(stream.processor.resumed(sequence_id)))

    def _check_open(self) -> None:
        if self._failure is not None or self._closing:
            raise self._failure or EngineDeadError("the server is shutting down")

    def _accept(self, stream: RequestStream[Any], sequences: SequenceOf[EngineRequest], timeout: float | None) -> None:
        """Take a request on: from here until it ends, it survives the engine."""
        if timeout is not None and not timeout > 0:
            raise InvalidRequestError(f"timeout must be a number of seconds above 0, but is {timeout}", param="timeout")
        self._admission.enter(stream.processor.request_id, len(sequences[0].prompt_token_ids))
        if timeout is not None:
            stream.timer = asyncio.get_running_loop().call_later(timeout, self._time_out, stream)
        for sequence in sequences:
            assert sequence.request_id not in self._streams, f"request id {sequence.request_id!r} is in use"
            self._streams[sequence.request_id] = stream
        if self._ready.is_set() and not self._suspects.hold(stream):
            self._submit([stream])

    def _under_way(self) -> list[RequestStream[Any]]:
        """Every unfinished request once, in the order of arrival."""
        return list(dict.fromkeys(self._streams.values()))

    def _refuse_wide_searches(self) -> None:
        """Beam searches that came before the size of the pool was known, and cannot fit it."""
        for stream in self._under_way():
            request = stream.processor.resumed(stream.processor.unfinished_ids[0])
            try:
                if request.params.use_beam_search:
                    self._builder.check_beams(request.params, len(request.prompt_token_ids), request.max_tokens)
            except InvalidRequestError as refusal:
                self._forget(stream)
                stream.fail(refusal)

    def _give_up(self, failure: EngineFailed | None, reason: str) -> None:
        kinds = {kind.__name__: kind for kind in (ConfigError, ModelLoadError, DiskFullError)}
        self._failure = kinds.get(failure.kind if failure else "", EngineDeadError)(reason)
        self._fail_calls(reason)
        self._fail_all(self._failure)

    def _drop_cause(self) -> None:
        """Count a death of the engine; end the request that has caused it, where that is known."""
        cause = self._suspects.after_death(self._under_way())
        if cause is not None:
            logger.error("request %s was on trial when the engine died again: giving it up", cause.processor.request_id)
            self._forget(cause)
            cause.fail(RequestFailedError("the engine died each time it worked on this request"))

    # -- requests --------------------------------------------------------------------------------------------------------------------

    def _deliver(self, output: SequenceOutput) -> None:
        stream = self._streams.get(output.request_id)
        if stream is None:
            return  # aborted, while this was on its way
        try:
            new, stopped = stream.processor.process(output)
        except Exception as error:
            # One request's trouble is its own: the others go on.
            logger.exception("request %s failed while its output was read", stream.processor.request_id)
            self._abort(stream)
            stream.fail(OctavoError(f"internal error: {error}"))
            return
        if stopped:
            self._process.send(AbortRequests([output.request_id]))
        if stopped or output.finish_reason is not None:
            del self._streams[output.request_id]
            self._stream_ended.set()
        if output.new_token_ids or output.finish_reason is not None:
            self._admission.leave(stream.processor.request_id)
            self._submit(self._suspects.acquit(stream))
        if new is not None:
            stream.put(new)

    def _abort(self, stream: RequestStream[Any]) -> None:
        ids = self._forget(stream)
        if ids and self._ready.is_set():
            self._process.send(AbortRequests(ids))

    def _time_out(self, stream: RequestStream[Any]) -> None:
        self._abort(stream)
        stream.fail(RequestTimeoutError("the request reached its timeout before it was finished: ask for fewer tokens, or allow more time"))

    async def _all_done(self) -> None:
        while self._streams and self._failure is None:
            self._stream_ended.clear()
            await self._stream_ended.wait()

    def _forget(self, stream: RequestStream[Any]) -> list[str]:
        self._stream_ended.set()
        self._admission.leave(stream.processor.request_id)
        unfinished = [sequence_id for sequence_id in stream.processor.unfinished_ids if self._streams.pop(sequence_id, None) is not None]
        self._submit(self._suspects.acquit(stream))
        return unfinished

    def _fail_all(self, error: OctavoError) -> None:
        for stream in self._under_way():
            self._admission.leave(stream.processor.request_id)
            stream.fail(error)
        self._streams.clear()
        self._stream_ended.set()

    def _finish_call(self, call_id: int, value: Any, error: str | None) -> None:
        future = self._calls.pop(call_id, None)
        if future is None or future.done():
            return
        if error is not None:
            future.set_exception(OctavoError(error))
        else:
            future.set_result(value)

    def _fail_calls(self, reason: str) -> None:
        for call_id in list(self._calls):
            self._finish_call(call_id, None, reason)
