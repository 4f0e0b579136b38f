"""What the routes share: the engine, the model's names, and whether and how many requests are taken at the moment."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from engine.errors import InvalidRequestError, OctavoError
from octavo import __version__
from server.config import ServerConfig
from server.errors import ApiError
from server.observability.logs import logger
from server.observability.metrics import Metrics
from server.observability.record import RequestRecord
from server.protocol.sampling import sampling_defaults
from server.text_work import TextWork

if TYPE_CHECKING:
    from engine.async_engine import AsyncLLMEngine


class Running(Protocol):
    """What is under way in the engine for a request."""

    def end_with(self, error: ApiError) -> None:
        """End it there; whoever waits for its result gets the error."""
        ...


class Phase(Enum):
    """Where the server is in its life."""

    STARTING = "starting"
    READY = "ready"
    SLEEPING = "sleeping"
    DRAINING = "draining"
    FAILED = "failed"


class Service:
    """One served model. Raises ConfigError when the configured chat template cannot be read or compiled."""

    def __init__(self, engine: AsyncLLMEngine, config: ServerConfig) -> None:
        self.engine = engine
        self.config = config
        self.tokenizer = engine.tokenizer
        self.created = int(time.time())
        self.metrics = Metrics(lambda: engine.stats, lambda: engine.num_restarts)
        self.names = config.served_model_name or (_short_name(engine.source.name),)
        if config.vllm_metric_names:
            self.metrics.add_vllm_names(self.names[0], self._cache_settings)
        self._accepted_names = {*self.names, engine.source.name}
        self.running: set[Running] = set()
        self._num_pending = 0  # requests that were admitted and have not ended
        self._admitted = 0  # their sequences
        self._idle = asyncio.Event()
        self._idle.set()
        self._draining = False
        self._asleep = False
        self._falling_asleep = asyncio.Lock()  # held while it falls asleep or wakes up
        self._failed = False
        self._has_served = False
        self.texts = TextWork(engine, config)
        self.defaults = self._load_defaults()
        self.system_fingerprint = self._fingerprint()

    @property
    def phase(self) -> Phase:
        if self._draining:
            return Phase.DRAINING
        if self._failed or self.engine.failure is not None:
            return Phase.FAILED
        if self._asleep:
            return Phase.SLEEPING
        return Phase.READY if self.engine.is_ready else Phase.STARTING

    async def start(self) -> None:
        """Wait until the engine serves. Raises what `AsyncLLMEngine.start` raises."""
        try:
            await self.engine.start()
        except OctavoError:
            self._failed = True
            raise
        self._has_served = True

    def begin_draining(self) -> None:
        """Take no new requests from now on."""
        self._draining = True

    async def drain(self, grace_period: float) -> None:
        """Wait up to `grace_period` seconds for running requests; then end those that are left, with an error that says why."""
        self.begin_draining()
        await self._let_finish(grace_period)
        self.end_running("the server is shutting down, and the grace period is over")

    @property
    def is_asleep(self) -> bool:
        return self._asleep

    async def sleep(self, grace_period: float) -> None:
        """Give the KV cache's memory back until `wake_up`. New requests get 503; running ones have `grace_period` seconds to finish.

        The weights stay where they are. Raises ApiError 503 before the engine serves.
        """
        async with self._falling_asleep:
            if self._asleep:
                return
            self.check_open()
            self._asleep = True
            try:
                await self._let_finish(grace_period)
                self.end_running("the server was put to sleep", "server_sleeping")
                await self.engine.sleep()
            except BaseException:
                self._asleep = False
                raise
        logger.info("asleep: the KV cache's memory is free")

    async def wake_up(self) -> None:
        """Serve again. Raises OctavoError when somebody else has the memory now."""
        async with self._falling_asleep:
            if self._asleep:
                await self.engine.wake_up()
                self._asleep = False
                logger.info("awake again")

    async def _let_finish(self, grace_period: float) -> None:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._idle.wait(), grace_period)

    def end_running(self, reason: str, code: str = "shutting_down") -> None:
        """End all running requests with an error."""
        for running in list(self.running):
            running.end_with(ApiError(503, reason, code=code))

    def check_open(self) -> None:
        """Raises ApiError 503 before the engine serves for the first time, once it is given up, and while the server is being stopped.

        While a dead engine is being replaced requests are taken: the engine's face keeps them until the new one serves.
        """
        phase = self.phase
        if phase is Phase.READY or (phase is Phase.STARTING and self._has_served):
            return
        reason = {
            Phase.STARTING: "the model is being loaded: try again in a moment",
            Phase.SLEEPING: "the server sleeps until an operator wakes it",
            Phase.DRAINING: "the server is shutting down",
            Phase.FAILED: "the engine stopped and could not be brought back; the server's log says why",
        }[phase]
        raise ApiError(503, reason, code=f"server_{phase.value}", headers={"retry-after": "1"})

    def check_awake(self) -> None:
        """Raises ApiError 503 for work that was taken before the server fell asleep, and comes to the engine after."""
        if self._asleep:
            self.check_open()

    def admit(self, record: RequestRecord, num_prompts: int, num_samples: int) -> None:
        """Take a place for each sequence of a request until the request ends.

        Raises ApiError 503, 400 when it asks for more sequences than one request may, and 429 when so many places are not free.
        """
        self.check_open()
        num_sequences, places = num_prompts * num_samples, self.config.max_pending_requests
        most = min(self.config.max_sequences_per_request, places)
        if num_sequences > most:
            param = "prompt" if num_prompts > most else "n"
            message = (
                f"{num_prompts} prompts with {num_samples} samples each are {num_sequences} sequences, but a request may ask for {most}"
            )
            raise ApiError(400, message, param=param)
        if self._admitted + num_sequences > places:
            message = f"{self._admitted} of the {places} places for sequences are taken, and this request needs {num_sequences}"
            raise ApiError(429, f"{message}: try again in a moment", code="rate_limit_exceeded", headers={"retry-after": "1"})
        self._count_admitted(1, num_sequences)
        record.at_end.append(lambda: self._count_admitted(-1, -num_sequences))

    def resolve_model(self, asked: str | None) -> str:
        """The name under which the answer reports the model. Raises ApiError 404 for a model that is not served."""
        if asked is None:
            return self.names[0]
        if asked not in self._accepted_names:
            message = f"the model {asked[:200]!r} does not exist here; this server has {', '.join(self.names)}"
            raise ApiError(404, message, param="model", code="model_not_found")
        return asked

    def _count_admitted(self, requests: int, sequences: int) -> None:
        self._num_pending += requests
        self._admitted += sequences
        if self._num_pending:
            self._idle.clear()
        else:
            self._idle.set()
        self.metrics.pending.set(self._num_pending)

    def _load_defaults(self) -> dict[str, Any]:
        if self.config.generation_config == "none":
            return {}
        try:
            return sampling_defaults(self.engine.source.generation_defaults())
        except (InvalidRequestError, TypeError) as error:
            logger.warning("the model's generation_config.json is ignored: %s", error)
            return {}

    def _cache_settings(self) -> dict[str, str]:
        settings = self.engine.config
        return {
            "block_size": str(settings.block_size),
            "num_gpu_blocks": str(self.engine.stats.blocks_total),
            "cache_dtype": settings.kv_cache_dtype,
            "enable_prefix_caching": str(settings.enable_prefix_caching),
            "gpu_memory_utilization": str(settings.gpu_memory_utilization),
        }

    def _fingerprint(self) -> str:
        """Names everything that may change a seeded answer: this build, the weights, and the settings that change arithmetic."""
        settings = self.engine.config
        numeric = (
            settings.dtype,
            settings.quantization,
            settings.device,
            settings.kernels,
            settings.deterministic,
            settings.kv_cache_dtype,
            settings.enforce_eager,
        )
        text = "\n".join((__version__, self.engine.source.fingerprint(), *map(str, numeric)))
        return "fp_" + hashlib.sha256(text.encode()).hexdigest()[:12]


def _short_name(name: str) -> str:
    """A model's name for the API: paths lose their directories, GGUF files their suffix."""
    path = Path(name).expanduser()
    return path.name.removesuffix(".gguf") if path.exists() else name
