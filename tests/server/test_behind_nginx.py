"""Two servers behind nginx, which runs with the very file that docker/ mounts."""

from __future__ import annotations

import asyncio
import http.server
import json
import shutil
import ssl
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import httpx
import pytest
from live_server import Guarded, RunningServer

from loadtest.client import connection, receive, send
from loadtest.nginx import free_port, is_installed, nginx
from server.routes import admin, debug

pytestmark = pytest.mark.skipif(not is_installed(), reason="needs nginx and envsubst: on Debian, apt-get install nginx-light gettext-base")

PROMPT = "A conversation that goes on for a while, so that it fills several blocks of the cache, begins like this. "


@pytest.fixture(scope="module")
def proxy(server: RunningServer, guarded: Guarded, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """nginx in front of a server that asks for no key and one that does; the client has a key."""
    with nginx(tmp_path_factory.mktemp("nginx"), (server.url, guarded.url)) as url:
        headers = {"Authorization": f"Bearer {guarded.keys['front']}"}
        with httpx.Client(base_url=url, headers=headers, timeout=60) as client:
            yield client


def completions(server: RunningServer) -> float:
    try:
        return server.metric('octavo_http_responses_total{method="POST",status="200"}')
    except KeyError:
        return 0.0


def test_tokens_come_through_nginx_one_by_one(proxy: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 150, "ignore_eos": True, "stream": True}

    async def times() -> list[float]:
        async with connection(str(proxy.base_url)) as (reader, writer):
            await send(writer, "/v1/completions", body, {"Authorization": proxy.headers["authorization"]})
            answer, pieces = await receive(reader)
            assert answer.status == 200
            async for _ in pieces:
                pass
            return answer.times

    found = asyncio.run(times())
    assert len(found) > 75, "each piece has a token or two"
    lasted = found[-1] - found[0]
    assert max(later - earlier for earlier, later in pairwise(found)) < lasted / 2, "they come all the while"


def test_a_session_stays_with_one_server_whose_cache_then_holds_it(proxy: httpx.Client, server: RunningServer, guarded: Guarded) -> None:
    def converse(number: int) -> list[int]:
        prompt, cached = f"{number}: {PROMPT}", []
        for _ in range(3):
            body = {"prompt": prompt, "max_tokens": 18, "ignore_eos": True, "temperature": 0}
            answer = proxy.post("/v1/completions", json=body, headers={"X-Session-ID": f"session {number}"}).raise_for_status().json()
            cached.append((answer["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0))
            prompt += answer["choices"][0]["text"]
        return cached

    before = [completions(each) for each in (server, guarded.server)]
    with ThreadPoolExecutor(4) as pool:
        for _, second, third in pool.map(converse, range(16)):
            assert 16 <= second < third, "what a turn added is found at the next"
    shares = [completions(each) - was for each, was in zip((server, guarded.server), before, strict=True)]
    assert sum(shares) == 48
    assert min(shares) > 0, "both have sessions"


@pytest.mark.parametrize("header", ["X-OpenWebUI-Chat-Id", "X-OpenWebUI-User-Id", "Authorization"])
def test_without_an_id_a_session_is_a_conversation_a_user_or_a_key(header: str, proxy: httpx.Client, guarded: Guarded) -> None:
    found = set()
    for number in range(12):
        values = {header: f"value {number}"} if header != "Authorization" else {header: f"Bearer wrong {number}"}
        # One of the servers refuses a wrong key, the other takes any: so it is seen who answers.
        headers = {"Authorization": "Bearer wrong"} | values
        found.add(len({proxy.get("/v1/models", headers=headers).status_code for _ in range(3)}))
    assert found == {1}


@pytest.mark.parametrize("path", sorted({"/metrics", *admin.PATHS, *debug.PATHS}))
def test_what_is_the_operators_cannot_be_reached_through_nginx(path: str, proxy: httpx.Client, guarded: Guarded) -> None:
    headers = {"Authorization": f"Bearer {guarded.keys['ops']}"}
    for written in (path, f"/{path}", f"/v1/..{path}", path.replace("e", "%65"), f"{path}/"):
        for method in ("GET", "POST"):
            answer = proxy.request(method, httpx.URL(str(proxy.base_url) + written), headers=headers)
            assert answer.status_code == 404, written
            assert answer.json()["error"]["code"] in ("not_found", None), written


def test_what_everybody_may_ask_comes_through(proxy: httpx.Client) -> None:
    assert [proxy.get(path).status_code for path in ("/health", "/ready", "/version", "/v1/models")] == [200] * 4


def test_a_body_beyond_the_servers_limit_is_refused_as_openai_refuses(proxy: httpx.Client) -> None:
    body = json.dumps({"prompt": "x" * (8 << 20), "max_tokens": 1})
    answer = proxy.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "body_too_large"


def test_without_any_server_an_answer_says_so(tmp_path: Path) -> None:
    nobody = (f"http://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}")
    with nginx(tmp_path, nobody) as url:
        answer = httpx.post(url + "/v1/completions", json={})
    assert answer.status_code == 502
    assert answer.json()["error"]["type"] == "server_error"


def test_who_is_away_is_passed_over_and_a_request_id_goes_all_the_way(server: RunningServer, tmp_path: Path) -> None:
    with nginx(tmp_path, (f"http://127.0.0.1:{free_port()}", server.url)) as url:
        for number in range(8):
            headers = {"X-Session-ID": str(number), "X-Request-ID": f"mine-{number}"}
            answer = httpx.get(url + "/v1/models", headers=headers)
            assert answer.status_code == 200
            assert answer.headers["x-request-id"] == f"mine-{number}"


def test_a_client_cannot_say_that_it_comes_from_elsewhere(tmp_path: Path) -> None:
    seen: list[str | None] = []

    class Upstream(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers["X-Forwarded-For"])
            self.send_response(204)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Upstream) as upstream:
        threading.Thread(target=upstream.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{upstream.server_port}"
        with nginx(tmp_path, (address, address)) as url:
            httpx.get(url, headers={"X-Forwarded-For": "203.0.113.7"})
        upstream.shutdown()
    assert seen == ["127.0.0.1"]


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
def test_with_a_certificate_it_is_https(server: RunningServer, tmp_path: Path) -> None:
    chain, key = tmp_path / "chain.pem", tmp_path / "key.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-days", "2", "-subj", "/CN=octavo"]
    made = [*command, "-addext", "subjectAltName=IP:127.0.0.1", "-nodes", "-keyout", str(key), "-out", str(chain)]
    subprocess.run(made, check=True, capture_output=True)
    with nginx(tmp_path, (server.url, server.url), (chain, key)) as url:
        assert httpx.get(url + "/v1/models", verify=ssl.create_default_context(cafile=str(chain))).status_code == 200
        assert httpx.get(url.replace("https", "http") + "/v1/models").status_code == 400
