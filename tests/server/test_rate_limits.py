"""Requests and tokens per minute: what is let through, what the headers say, and that the official client recovers by itself."""

from __future__ import annotations

import time
from collections.abc import Iterator

import httpx
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from live_server import Guarded, RunningServer, running_server

from server.access.caller import ANYBODY, Caller
from server.access.rate_limits import MAX_HOLDERS, UNLIMITED, Allowance, Bucket, RateLimits
from server.config import ServerConfig
from server.errors import ApiError


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def _limits(clock: _Clock, requests: int = 0, tokens: int = 0) -> RateLimits:
    return RateLimits(ServerConfig(rate_limit_requests=requests, rate_limit_tokens=tokens), clock)


def _headers(allowance: Allowance) -> dict[str, str]:
    return {name.decode().removeprefix("x-ratelimit-"): value.decode() for name, value in allowance.headers()}


@given(steps=st.lists(st.tuples(st.floats(0, 120), st.integers(1, 50)), max_size=60), per_minute=st.integers(1, 60))
def test_no_minute_and_its_burst_let_more_than_twice_the_limit_through(steps: list[tuple[float, int]], per_minute: int) -> None:
    clock = _Clock()
    allowance = Allowance(Bucket(per_minute, clock))
    taken: list[tuple[float, int]] = []
    for pause, amount in steps:
        clock.now += pause
        try:
            allowance.take("requests", amount)
        except ApiError as refusal:
            if "retry-after-ms" in refusal.headers:  # who waits as long as told is let through
                clock.now += int(refusal.headers["retry-after-ms"]) / 1000
                allowance.take("requests", amount)
                taken.append((clock.now, amount))
            else:
                assert amount > per_minute
        else:
            taken.append((clock.now, amount))
        assert sum(amount for at, amount in taken if at > clock.now - 60) <= 2 * per_minute


def test_the_headers_say_what_is_left_and_when_it_is_whole_again() -> None:
    clock = _Clock()
    allowance = _limits(clock, requests=60, tokens=600).of(ANYBODY, "10.0.0.1")
    for _ in range(10):
        allowance.take("requests", 1)
    allowance.take("tokens", 598)
    assert _headers(allowance) == {
        "limit-requests": "60",
        "remaining-requests": "50",
        "reset-requests": "10s",
        "limit-tokens": "600",
        "remaining-tokens": "2",
        "reset-tokens": "59.8s",
    }
    allowance.give_back(-698)
    assert (_headers(allowance)["remaining-tokens"], _headers(allowance)["reset-tokens"]) == ("0", "2m9s")
    clock.now += 200
    assert (_headers(allowance)["remaining-tokens"], _headers(allowance)["reset-tokens"]) == ("600", "0ms")


def test_what_can_never_be_within_the_limit_is_not_worth_another_try() -> None:
    with pytest.raises(ApiError) as caught:
        _limits(_Clock(), tokens=100).of(ANYBODY, "10.0.0.1").take("tokens", 101)
    assert caught.value.headers == {"x-should-retry": "false"}


def test_holders_are_keys_or_addresses_and_an_ipv6_host_is_its_network() -> None:
    limits = _limits(_Clock(), requests=5)
    assert limits.of(Caller("ann"), "10.0.0.1") is limits.of(Caller("ann"), "10.0.0.2")
    assert limits.of(ANYBODY, "10.0.0.1") is not limits.of(ANYBODY, "10.0.0.2")
    assert limits.of(ANYBODY, "10.0.0.1") is limits.of(ANYBODY, "::ffff:10.0.0.1")
    assert limits.of(ANYBODY, "2001:db8::1") is limits.of(ANYBODY, "2001:db8::ffff:2")
    assert limits.of(ANYBODY, "2001:db8::1") is not limits.of(ANYBODY, "2001:db8:0:1::1")
    assert limits.of(Caller("bob", requests_per_minute=0), "10.0.0.1") is UNLIMITED


def test_many_addresses_take_bounded_memory() -> None:
    limits = _limits(_Clock(), requests=5)
    busy = limits.of(ANYBODY, "busy")
    for number in range(MAX_HOLDERS + 1000):
        limits.of(ANYBODY, f"address {number}")
        limits.of(ANYBODY, "busy")
    assert len(limits._allowances) == MAX_HOLDERS
    assert limits.of(ANYBODY, "busy") is busy


def test_one_request_too_many_is_a_429_and_the_official_client_recovers(guarded: Guarded) -> None:
    key = guarded.keys["few-requests"]
    with httpx.Client(base_url=guarded.url, headers={"x-api-key": key}) as http:
        answers = [http.post("/tokenize", json={"prompt": "a"}) for _ in range(62)]
        assert answers[0].headers["x-ratelimit-remaining-requests"] == "59"
        refused = next(answer for answer in answers if answer.status_code == 429)
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert refused.headers["retry-after"] == "1"
        assert 0 < int(refused.headers["retry-after-ms"]) <= 1001
        assert refused.headers["x-ratelimit-remaining-requests"] == "0"
        assert http.get("/v1/models").status_code == 200, "what costs nothing is not counted"
    with openai.OpenAI(base_url=f"{guarded.url}/v1", api_key=key, max_retries=2) as client:
        model = client.models.list().data[0].id
        began = time.monotonic()
        for _ in range(2):
            client.completions.create(model=model, prompt="a", max_tokens=1)
        assert time.monotonic() - began > 0.5, "it had to wait"
        with pytest.raises(openai.RateLimitError):
            _ = [client.with_options(max_retries=0).completions.create(model=model, prompt="a", max_tokens=1) for _ in range(3)]


def test_tokens_are_charged_on_arrival_and_settled_at_the_end(guarded: Guarded) -> None:
    body = {"prompt": "Hello", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with httpx.Client(base_url=guarded.url, headers={"x-api-key": guarded.keys["few-tokens"]}) as http:
        with http.stream("POST", "/v1/completions", json=body) as stream:
            assert int(stream.headers["x-ratelimit-remaining-tokens"]) < 200
            refused = http.post("/v1/completions", json=body)
            assert refused.status_code == 429
            assert "600 tokens per minute" in refused.json()["error"]["message"]
            assert int(refused.headers["retry-after"]) > 10
            next(stream.iter_lines())
        left = http.post("/v1/completions", json={**body, "max_tokens": 1, "stream": False})
        assert left.status_code == 200
        assert int(left.headers["x-ratelimit-remaining-tokens"]) > 400, "the client left early, and paid for what it got"
        never = http.post("/v1/completions", json={**body, "n": 3})
        assert (never.status_code, never.headers["x-should-retry"]) == (429, "false")
        too_long = http.post("/v1/completions", json={**body, "max_tokens": 10**6, "prompt": "a " * 2000})
        assert too_long.status_code in (400, 429)


@pytest.fixture(scope="module")
def open_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Without keys, and open to other machines. Need not have loaded its model."""
    flags = ["--host", "0.0.0.0", "--rate-limit-requests", "2", "--forwarded-allow-ips", "127.0.0.2"]
    with running_server(tmp_path_factory.mktemp("open"), *flags) as server:
        yield server


def test_a_trusted_proxys_clients_have_limits_of_their_own_and_others_cannot_pretend(open_server: RunningServer) -> None:
    def statuses(own_address: str, *clients: str) -> list[int]:
        transport = httpx.HTTPTransport(local_address=own_address)
        with httpx.Client(base_url=open_server.url, transport=transport) as http:
            return [http.post("/nothing", headers={"x-forwarded-for": client}).status_code for client in clients]

    assert statuses("127.0.0.2", "1.1.1.1", "1.1.1.1", "9.9.9.9, 1.1.1.1", "2.2.2.2") == [404, 404, 429, 404]
    assert statuses("127.0.0.1", "3.3.3.3", "4.4.4.4", "5.5.5.5") == [404, 404, 429]


def test_a_server_that_is_open_to_others_without_a_key_warns(open_server: RunningServer, guarded: Guarded) -> None:
    assert "warning: anyone who reaches 0.0.0.0 may use this server" in open_server.log
    assert "anyone who reaches" not in guarded.server.log
