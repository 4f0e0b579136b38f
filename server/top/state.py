"""What `octavo top` knows of a server: its state at the latest looks, and what grew between them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import httpx
import msgspec

from engine.snapshot import SequenceView
from engine.stats import EngineStats

PARTS = ("schedule", "model", "sample", "update")  # of a step

_WINDOW = 3.0  # seconds over which a rate is taken: steps are not even
_KEPT = 500  # rates, for the line of the past


class State(msgspec.Struct, frozen=True):
    """The answer of GET /debug/state."""

    phase: str
    model: str
    engine_restarts: int
    max_num_seqs: int
    stats: EngineStats
    sequences: list[SequenceView]
    blocks: list[int]  # as in engine/snapshot.py
    blocks_per_cell: int = 1


class UnreachableError(Exception):
    """The server gives no state. The message is for the user."""


class Source:
    """Asks one server for its state."""

    def __init__(self, url: str, api_key: str | None) -> None:
        if "://" not in url:
            url = f"http://{url}"
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
        self._client = httpx.Client(base_url=self.url, headers=headers, timeout=5.0)

    def state(self) -> State:
        """The state now. Raises UnreachableError."""
        try:
            response = self._client.get("/debug/state")
            if response.status_code in (401, 403):
                raise UnreachableError("the server shows this to the holder of an admin's key: give it by --api-key or OCTAVO_API_KEY")
            response.raise_for_status()
            return msgspec.json.decode(response.content, type=State)
        except httpx.HTTPStatusError as error:
            raise UnreachableError(f"{self.url} answers with status {error.response.status_code}") from error
        except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
            raise UnreachableError(f"no server answers at {self.url}: {error}") from error
        except msgspec.DecodeError as error:
            raise UnreachableError(f"what answers at {self.url} is no Octavo of this version: {error}") from error


@dataclass(frozen=True)
class Rates:
    """What grew, per second."""

    generated: float = 0.0  # tokens
    prompt: float = 0.0  # tokens
    part_ms: dict[str, float] = field(default_factory=dict)  # milliseconds of a step in the mean; empty: there was no step
    sequences: dict[str, float] = field(default_factory=dict)  # tokens, by request id


class History:
    """The latest looks at a server."""

    def __init__(self) -> None:
        self._looks: deque[tuple[float, State]] = deque()
        self.rates = Rates()
        self.throughput: deque[float] = deque(maxlen=_KEPT)  # tokens per second, generated; one for each look
        self.places: dict[str, int] = {}  # by request id: the how manieth this sequence is of those ever seen
        self._num_seen = 0

    @property
    def latest(self) -> State | None:
        return self._looks[-1][1] if self._looks else None

    def add(self, state: State, now: float) -> None:
        """Take note of a state seen at `now`, in seconds of a clock that only goes forward."""
        if self._looks and self._looks[-1][1].engine_restarts != state.engine_restarts:
            self._looks.clear()  # another engine counts from nothing
        self._looks.append((now, state))
        before, self.places = self.places, {}
        for one in state.sequences:
            self.places[one.request_id] = before.get(one.request_id, self._num_seen)
            self._num_seen += one.request_id not in before
        while len(self._looks) > 2 and self._looks[1][0] <= now - _WINDOW:
            self._looks.popleft()
        self.rates = self._measure()
        if len(self._looks) > 1:
            self.throughput.append(self.rates.generated)

    def _measure(self) -> Rates:
        (began, before), (now, state) = self._looks[0], self._looks[-1]
        seconds = now - began
        if seconds <= 0:
            return Rates()

        def grown(name: str) -> float:
            # The server itself may have been started anew, and count from nothing.
            return float(max(0, getattr(state.stats, name) - getattr(before.stats, name)))

        steps = grown("steps_total")
        first: dict[str, tuple[float, int]] = {}  # of each sequence: when it was seen first in the window, and with how many tokens
        for then, seen in self._looks:
            for one in seen.sequences:
                first.setdefault(one.request_id, (then, one.num_generated_tokens))
        return Rates(
            generated=grown("generation_tokens_total") / seconds,
            prompt=grown("prompt_tokens_total") / seconds,
            part_ms={part: 1000 * grown(f"{part}_seconds_total") / steps for part in PARTS} if steps else {},
            sequences={
                one.request_id: (one.num_generated_tokens - tokens) / (now - then)
                for one, (then, tokens) in ((one, first[one.request_id]) for one in state.sequences)
                if then < now
            },
        )
