"""Chromium without a window, driven over its DevTools protocol.

Source of the messages: https://chromedevtools.github.io/devtools-protocol/.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

CHROMIUM = next((found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None)

# As root, in a container, Chromium's own sandbox cannot be set up; what is shown is this repository's page.
_FLAGS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run", "--remote-debugging-port=0")
_KEYS = {"Enter": (13, "\r"), "Escape": (27, ""), "k": (75, "k"), "ArrowRight": (39, "")}
_CONTROL = 2  # modifier


class Tab:
    """One page. Raises AssertionError when the page has thrown an error, or what is waited for does not come."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket
        self._last_id = 0
        self.requested: list[str] = []  # addresses that the page asked for
        self.complaints: list[str] = []  # errors in scripts, and what the browser refused to do
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """One command, and its result."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv(timeout=20))).get("id") != self._last_id:
            self._note(message)
        assert "error" not in message, message
        return dict(message["result"])

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && document.querySelector('#model')?.textContent !== undefined")

    def run(self, expression: str) -> Any:
        """The value of an expression in the page; of a promise, once it is kept."""
        answer = self.send("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def wait_for(self, condition: str, seconds: float = 20.0) -> Any:
        """The value of an expression once it is true; of an element, that it is there."""
        deadline = time.monotonic() + seconds
        while not (value := self.run(f"((value) => value instanceof Node || value)({condition})")):
            assert time.monotonic() < deadline, f"not within {seconds} s: {condition}\n{self.complaints}\n{self.text('body')}"
            time.sleep(0.01)
        return value

    def text(self, selector: str) -> str:
        """What is to be read in an element; of none, nothing."""
        return str(self.run(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))

    def click(self, selector: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).click()")

    def type(self, text: str) -> None:
        """Into what has the focus."""
        self.send("Input.insertText", text=text)

    def press(self, key: str, control: bool = False) -> None:
        code, text = _KEYS[key]
        event = {"key": key, "windowsVirtualKeyCode": code, "modifiers": _CONTROL if control else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown", text="" if control else text, **event)
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def resize(self, width: int, height: int, mobile: bool = False, scale: float = 1) -> None:
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile)

    def prefer(self, scheme: str) -> None:
        """light or dark."""
        self.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])
        elif event["method"] == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(params["entry"]["text"])


class Browser:
    """One Chromium. Each tab has storage of its own."""

    def __init__(self, port: int, socket: ClientConnection) -> None:
        self._port = port
        self._socket = socket
        self._last_id = 0

    @contextmanager
    def tab(self) -> Iterator[Tab]:
        """A new tab, closed at the end."""
        context = self._send("Target.createBrowserContext")["browserContextId"]
        target = self._send("Target.createTarget", url="about:blank", browserContextId=context)["targetId"]
        with connect(f"ws://127.0.0.1:{self._port}/devtools/page/{target}", max_size=None) as socket:
            yield Tab(socket)
        self._send("Target.disposeBrowserContext", browserContextId=context)

    def close(self) -> None:
        self._send("Browser.close")

    def _send(self, method: str, **params: Any) -> dict[str, Any]:
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": params}))
        while (message := json.loads(self._socket.recv(timeout=20))).get("id") != self._last_id:
            pass
        return dict(message["result"])


@contextmanager
def running_browser(directory: Path) -> Iterator[Browser]:
    """Starts Chromium with its files in `directory`; ends it at the end."""
    assert CHROMIUM is not None
    told = directory / "DevToolsActivePort"
    environment = {**os.environ, "HOME": str(directory)}
    command = [CHROMIUM, *_FLAGS, f"--user-data-dir={directory}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    try:
        deadline = time.monotonic() + 30
        while not (told.exists() and told.read_text().count("\n")):
            assert process.poll() is None, "Chromium ended"
            assert time.monotonic() < deadline, "Chromium does not start"
            time.sleep(0.02)
        port = int(told.read_text().split("\n")[0])
        address = httpx.get(f"http://127.0.0.1:{port}/json/version").json()["webSocketDebuggerUrl"]
        with connect(address, max_size=None) as socket:
            browser = Browser(port, socket)
            yield browser
            browser.close()
    finally:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
