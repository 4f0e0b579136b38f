"""Open WebUI in Chromium against a server: `python tests/clients/check_open_webui.py http://127.0.0.1:8000/v1 [screenshot.png]`.

It starts an Open WebUI of its own, with the settings of docs/clients/open-webui.md and a new data directory, and uses it as a person would.
OPEN_WEBUI_URL names one that runs already.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, expect, sync_playwright
from verdict import ANSWER, MODEL, QUESTION, check, free_port, run, running, server_url

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
SCREENSHOT = sys.argv[2] if len(sys.argv) > 2 else None
_START_SECONDS = 240.0  # its first start makes a database
_ANSWER_SECONDS = 60.0

page: Page


def environment(data: str) -> dict[str, str]:
    """The settings of docs/clients/open-webui.md."""
    return {
        "OPENAI_API_BASE_URL": server_url(),
        "OPENAI_API_KEY": "none",
        "ENABLE_OLLAMA_API": "False",
        "WEBUI_AUTH": "False",
        "WEBUI_SECRET_KEY": "only-for-this-check-and-32-bytes-long",
        "DATA_DIR": data,
        "OFFLINE_MODE": "True",
        "HF_HUB_OFFLINE": "1",
        "DEFAULT_MODEL_METADATA": json.dumps({"capabilities": {"builtin_tools": False}}),
        "DEFAULT_MODEL_PARAMS": json.dumps({"temperature": 0.2, "max_tokens": 200}),
        "RAG_EMBEDDING_ENGINE": "openai",
        "RAG_EMBEDDING_MODEL": MODEL,
        "RAG_OPENAI_API_BASE_URL": server_url(),
        "RAG_OPENAI_API_KEY": "none",
    }


def ask(text: str) -> None:
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")


def answer_as_it_grows() -> list[str]:
    """The different texts that the newest answer showed until it was complete."""
    seen: list[str] = []
    deadline = time.monotonic() + _ANSWER_SECONDS
    answers_before = page.locator(".copy-response-button").count()
    while time.monotonic() < deadline:
        prose = page.locator(".chat-assistant").last
        text = prose.inner_text().strip() if prose.count() else ""
        if text and (not seen or seen[-1] != text):
            seen.append(text)
        elif page.locator(".copy-response-button").count() > answers_before:  # shown when an answer is complete
            return seen
        time.sleep(0.03)
    raise AssertionError(f"no answer was complete within {_ANSWER_SECONDS} s, but {seen[-1:]!r:.300}")


@check
def the_model_is_offered() -> None:
    expect(page.get_by_role("button", name=re.compile(MODEL)).first).to_be_visible(timeout=60_000)


@check
def an_answer_is_seen_to_grow() -> None:
    ask("Write a short story about a lighthouse.")
    seen = answer_as_it_grows()
    assert len(seen) > 4, seen
    assert len(seen[-1]) > 100


@check
def the_conversation_goes_on() -> None:
    ask(QUESTION)
    assert ANSWER in answer_as_it_grows()[-1]
    if SCREENSHOT:
        page.screenshot(path=SCREENSHOT)


@contextlib.contextmanager
def open_webui(data: str) -> Iterator[str]:
    """A running Open WebUI, by its address."""
    if "OPEN_WEBUI_URL" in os.environ:
        yield os.environ["OPEN_WEBUI_URL"]
        return
    url = f"http://127.0.0.1:{(port := free_port())}"
    command = [Path(sys.executable).with_name("open-webui"), "serve", "--host", "127.0.0.1", "--port", str(port)]
    with running(command, Path(data) / "log", lambda: answers(f"{url}/health"), _START_SECONDS, **environment(data)):
        yield url


def answers(url: str) -> bool:
    try:
        return urllib.request.urlopen(url, timeout=5).status == 200
    except (urllib.error.URLError, OSError):
        return False


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as data, open_webui(data) as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(url, wait_until="domcontentloaded", timeout=60_000)
        page.locator("#chat-input").wait_for(timeout=60_000)
        news = page.get_by_role("button", name="Okay, Let's Go!")
        with contextlib.suppress(Exception):
            news.click(timeout=10_000)
        run()
