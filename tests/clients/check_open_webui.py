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
_ANSWER_SECONDS = 180.0

page: Page
page_url: str


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


def ask(text: str) -> list[str]:
    """The different texts that the answer showed until it was complete."""
    complete = page.locator(".copy-response-button")  # under each answer that is
    complete_before = complete.count()
    page.locator("#chat-input").click()
    page.keyboard.type(text)
    page.keyboard.press("Enter")
    page.get_by_text(text).last.wait_for(timeout=30_000)
    seen: list[str] = []
    deadline = time.monotonic() + _ANSWER_SECONDS
    while time.monotonic() < deadline:
        is_complete = complete.count() > complete_before
        answer = page.locator(".chat-assistant").last
        shown = answer.inner_text().strip() if answer.count() else ""
        if shown and seen[-1:] != [shown]:
            seen.append(shown)
        if is_complete:
            return seen
        time.sleep(0.03)
    raise AssertionError(f"no answer was complete within {_ANSWER_SECONDS} s, but {seen[-1:]!r:.300}")


@check
def the_model_is_offered() -> None:
    expect(page.get_by_role("button", name=re.compile(MODEL)).first).to_be_visible(timeout=60_000)


@check
def an_answer_is_seen_to_grow() -> None:
    seen = ask("Write a short story about a lighthouse.")
    assert len(seen) > 4, seen
    assert len(seen[-1]) > 100


@check
def the_conversation_goes_on() -> None:
    assert ANSWER in ask(QUESTION)[-1]
    if SCREENSHOT:
        page.screenshot(path=SCREENSHOT)


@check
def a_question_about_a_document_is_answered_from_it() -> None:
    page.goto(page_url, wait_until="domcontentloaded")
    page.locator("#chat-input").wait_for()
    text = "The old lighthouse of Lindau is 33 metres high. " * 3
    page.locator("input[type=file]").first.set_input_files({"name": "harbour.txt", "mimeType": "text/plain", "buffer": text.encode()})
    expect(page.get_by_text("harbour.txt").first).to_be_visible(timeout=60_000)
    time.sleep(3)  # its parts are embedded, of which the page shows little
    assert "33" in ask("How high is the old lighthouse of Lindau?")[-1]
    expect(page.get_by_text("1 Source").first).to_be_visible(timeout=10_000)


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
    with tempfile.TemporaryDirectory() as data, open_webui(data) as page_url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto(page_url, wait_until="domcontentloaded", timeout=60_000)
        page.locator("#chat-input").wait_for(timeout=60_000)
        news = page.get_by_role("button", name="Okay, Let's Go!")
        with contextlib.suppress(Exception):
            news.click(timeout=10_000)
        run()
