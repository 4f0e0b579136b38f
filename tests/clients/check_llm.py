"""The command-line tool `llm` against a server: `python tests/clients/check_llm.py http://127.0.0.1:8000/v1`.

The server needs a second name for its model, text-embedding-3-small: docs/clients/llm.md.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from verdict import ANSWER, MODEL, QUESTION, check, run, server_url

LLM = Path(sys.executable).with_name("llm")
HOME = tempfile.TemporaryDirectory()

# As in docs/clients/llm.md.
CHAT = f"""
- model_id: octavo
  model_name: {MODEL}
  api_base: {server_url()}
  supports_tools: true
  supports_schema: true
- model_id: octavo-completions
  model_name: {MODEL}
  api_base: {server_url()}
  completion: true
"""


def llm(*arguments: str, text: str | None = None) -> str:
    """What it prints. Raises AssertionError with what it says when it fails."""
    done = subprocess.run([LLM, *arguments], env=environment(), input=text, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def environment() -> dict[str, str]:
    return {**os.environ, "LLM_USER_PATH": HOME.name, "OPENAI_API_KEY": "none", "OPENAI_BASE_URL": server_url()}


@check
def the_model_is_listed() -> None:
    assert "octavo" in llm("models", "list")


@check
def a_prompt_is_answered() -> None:
    options = ("-o", "temperature", "0", "-o", "max_tokens", "48", "-o", "seed", "3")
    streamed = llm("-m", "octavo", *options, QUESTION)
    assert ANSWER in streamed
    assert llm("-m", "octavo", "--no-stream", *options, QUESTION) == streamed


@check
def an_answer_is_printed_as_it_comes() -> None:
    command = [LLM, "-m", "octavo", "-o", "temperature", "0", "-o", "max_tokens", "200", "Write a story about a lighthouse."]
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    times = []
    while process.stdout.read1():
        times.append(time.monotonic())
    assert process.wait(10) == 0
    assert len(times) > 10
    assert times[-1] - times[0] > 0.1


@check
def a_conversation_goes_on() -> None:
    llm("-m", "octavo", "-o", "temperature", "0", "-o", "max_tokens", "48", QUESTION)
    assert llm("-c", "-o", "temperature", "0", "-o", "max_tokens", "48", "Say it again.")
    spoken = llm("chat", "-m", "octavo", "-o", "temperature", "0", "-o", "max_tokens", "48", text=f"{QUESTION}\nAnd of Italy?\nexit\n")
    assert ANSWER in spoken


@check
def a_system_prompt_and_piped_text_are_read() -> None:
    assert llm("-m", "octavo", "-s", "You answer briefly.", "-o", "max_tokens", "48", text="What is the sea?")


@check
def a_schema_is_kept() -> None:
    schema = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 20}, "age": {"type": "integer"}}}
    schema |= {"required": ["name", "age"], "additionalProperties": False}
    answer = llm("-m", "octavo", "-o", "temperature", "0", "--schema", json.dumps(schema), "Invent a dog.")
    assert set(json.loads(answer)) == {"name", "age"}


@check
def tools_are_offered() -> None:
    assert llm("-m", "octavo", "-o", "temperature", "0", "-o", "max_tokens", "48", "-T", "llm_version", "Which version of llm is this?")


@check
def completions_go_on_with_a_text() -> None:
    assert ANSWER in llm("-m", "octavo-completions", "-o", "temperature", "0", "-o", "max_tokens", "16", "The capital of France is")


@check
def the_log_has_the_usage() -> None:
    llm("-m", "octavo", "-o", "temperature", "0", "-o", "max_tokens", "8", QUESTION)
    (entry,) = json.loads(llm("logs", "-n", "1", "--json"))
    assert entry["input_tokens"] > 0
    assert entry["output_tokens"] > 0


@check
def texts_are_embedded_and_found() -> None:
    assert len(json.loads(llm("embed", "-m", "3-small", "-c", "A cat."))) == 576
    texts = {"cats": "A cat sat on a mat.", "money": "Interest rates rose in March."}
    lines = "".join(json.dumps({"id": name, "content": text}) + "\n" for name, text in texts.items())
    llm("embed-multi", "texts", "-m", "3-small", "--store", "--format", "nl", "-", text=lines)
    nearest = json.loads(llm("similar", "texts", "-n", "1", "-c", "The cat is sitting on the mat."))
    assert nearest["id"] == "cats"


if __name__ == "__main__":
    Path(HOME.name, "extra-openai-models.yaml").write_text(CHAT)
    run()
