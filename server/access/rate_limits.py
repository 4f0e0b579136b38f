"""Requests and tokens per minute: of each API key, or of each client address where no keys are asked for.

Token buckets: a limit of 60 a minute lets 60 through at once and one more each second. As at OpenAI, what a request may cost at most
is charged when it comes, and what it has not used is given back when it ends.
"""

from __future__ import annotations

import ipaddress
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from server.access.caller import Caller
from server.config import ServerConfig
from server.errors import ApiError

Headers = list[tuple[bytes, bytes]]

# Charged for the answer of a request that sets no max_tokens: it may fill the context, but hardly ever does.
UNSTATED_TOKENS = 256
# Holders that are remembered; beyond that, the ones not seen for longest begin anew. About 8 MB.
MAX_HOLDERS = 16_384

EXPOSED_HEADERS = tuple(f"x-ratelimit-{part}-{what}" for part in ("limit", "remaining", "reset") for what in ("requests", "tokens"))


class Bucket:
    """What is left of one limit. It fills at the limit's rate, up to the limit of one minute; a settlement may leave it below zero."""

    def __init__(self, per_minute: int, clock: Callable[[], float]) -> None:
        self.per_minute = per_minute
        self._clock = clock  # monotonic, in seconds
        self._level = float(per_minute)
        self._at = clock()

    @property
    def level(self) -> float:
        now = self._clock()
        self._level = min(self.per_minute, self._level + (now - self._at) * self.per_minute / 60)
        self._at = now
        return self._level

    def take(self, amount: float) -> None:
        """Less than nothing gives back."""
        self._level = min(self.per_minute, self.level - amount)

    def seconds_until(self, level: float) -> float:
        return max(0.0, (level - self.level) * 60 / self.per_minute)


class Allowance:
    """What one holder may still do. None stands for no limit."""

    def __init__(self, requests: Bucket | None = None, tokens: Bucket | None = None) -> None:
        self._buckets = {"requests": requests, "tokens": tokens}

    @property
    def limits_tokens(self) -> bool:
        return self._buckets["tokens"] is not None

    def take(self, what: str, amount: int) -> None:
        """Raises ApiError 429, which says when to try again, unless so many `requests` or `tokens` are left."""
        bucket = self._buckets[what]
        if bucket is None:
            return
        if amount > bucket.per_minute:
            message = f"the request may need {amount} {what}, but the limit is {bucket.per_minute} per minute: ask for fewer"
            raise ApiError(429, message, code="rate_limit_exceeded", headers={"x-should-retry": "false"})
        wait = bucket.seconds_until(amount)
        if wait > 0:
            message = f"the limit of {bucket.per_minute} {what} per minute is reached: try again in {_duration(wait)}"
            # A client that waits exactly so long must not come a rounding too early.
            headers = {"retry-after": str(max(1, math.ceil(wait))), "retry-after-ms": str(math.ceil(wait * 1000) + 1)}
            raise ApiError(429, message, code="rate_limit_exceeded", headers=headers)
        bucket.take(amount)

    def give_back(self, tokens: int) -> None:
        """Settle a charge for tokens: what was not used, or less than nothing for what was used beyond it."""
        bucket = self._buckets["tokens"]
        if bucket is not None:
            bucket.take(-tokens)

    def headers(self) -> Headers:
        """OpenAI's x-ratelimit headers, for the limits that there are."""
        found: Headers = []
        for what, bucket in self._buckets.items():
            if bucket is not None:
                values = (
                    ("limit", str(bucket.per_minute)),
                    ("remaining", str(max(0, int(bucket.level)))),
                    ("reset", _duration(bucket.seconds_until(bucket.per_minute))),
                )
                found += [(f"x-ratelimit-{part}-{what}".encode(), value.encode()) for part, value in values]
        return found


UNLIMITED = Allowance()


class RateLimits:
    """The allowances of all holders."""

    def __init__(self, config: ServerConfig, clock: Callable[[], float] = time.monotonic) -> None:
        self._default = (config.rate_limit_requests, config.rate_limit_tokens)
        self._clock = clock
        self._allowances: OrderedDict[tuple[str, int, int], Allowance] = OrderedDict()

    def of(self, caller: Caller, address: str) -> Allowance:
        """The allowance of a key's holder, or else of an address."""
        requests = caller.requests_per_minute if caller.requests_per_minute is not None else self._default[0]
        tokens = caller.tokens_per_minute if caller.tokens_per_minute is not None else self._default[1]
        if not requests and not tokens:
            return UNLIMITED
        # The limits are part of the identity: a holder whose limits were changed begins anew.
        holder = (f"key:{caller.name}" if caller.name else _network(address), requests, tokens)
        found = self._allowances.get(holder)
        if found is None:
            found = Allowance(*(Bucket(limit, self._clock) if limit else None for limit in (requests, tokens)))
            self._allowances[holder] = found
            if len(self._allowances) > MAX_HOLDERS:
                self._allowances.popitem(last=False)
        else:
            self._allowances.move_to_end(holder)
        return found


def _network(address: str) -> str:
    """An IPv4 address, or the /64 that one IPv6 host is given whole."""
    try:
        parsed = ipaddress.ip_address(address)
    except ValueError:
        return address[:64]
    if parsed.version == 4:
        return address
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def _duration(seconds: float) -> str:
    """As OpenAI writes it: 120ms, 8.64s, 6m0s."""
    if seconds < 1:
        return f"{math.ceil(seconds * 1000)}ms"
    if seconds < 60:
        return f"{seconds:.2f}".rstrip("0").rstrip(".") + "s"
    return f"{int(seconds // 60)}m{int(seconds % 60)}s"
