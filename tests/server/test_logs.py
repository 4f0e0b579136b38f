"""What clients send cannot forge lines of the log."""

from __future__ import annotations

import json
import logging

import pytest

from server.observability.logs import JsonFormatter, PrettyFormatter, log_access, printable
from server.observability.record import RequestRecord


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> logging.LogRecord:
    record = RequestRecord("req_1", "GET", "/a\n12:00:00 error: forged\x1b[31m\u2028\u202e" + "x" * 10_000, status=404)
    record.error = "there is no GET /a\r\nhere"
    logger = logging.getLogger("octavo")
    logger.propagate = True
    with caplog.at_level(logging.INFO, "octavo"):
        log_access(record, record.started + 1)
    return caplog.records[-1]


def test_a_request_is_one_line_whatever_its_path_and_its_error_hold(logged: logging.LogRecord) -> None:
    line = PrettyFormatter(colour=False).format(logged)
    assert line.isprintable()
    assert r"/a\n12:00:00 error: forged\x1b[31m\u2028\u202e" in line
    assert r"error=there is no GET /a\r\nhere" in line


def test_a_long_path_is_cut(logged: logging.LogRecord) -> None:
    assert len(PrettyFormatter(colour=False).format(logged)) < 1000


def test_a_json_line_is_one_line_too(logged: logging.LogRecord) -> None:
    line = JsonFormatter().format(logged)
    assert "\n" not in line
    assert json.loads(line)["error"] == "there is no GET /a\r\nhere"


def test_text_in_any_script_is_left_as_it_is() -> None:
    assert printable("naïve 日本語 🦑") == "naïve 日本語 🦑"
    assert printable("\ud800") == r"\ud800"
