"""Checks all applications, or those that are named: `python tests/clients/run.py [langchain llama_index ...]`.

Each runs in an environment of its own under build/clients/, made at first use of requirements/*.txt, against one server that is started for
all. A check fails, too, when the server's log has answers of 4xx or 5xx that were not meant.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(HERE.parent / "server"))

from live_server import RunningServer, running_server  # noqa: E402

# How many answers of 4xx each one's checks provoke.
APPLICATIONS = {"langchain": 0, "llama_index": 0, "litellm": 2, "instructor": 0, "openai_agents": 0, "llm": 0, "open_webui": 0}
_LONGEST_SECONDS = 900  # of one application, its start included


def environment(application: str) -> Path:
    """The Python of the application's environment, which is made if it is not there or its requirements have changed."""
    directory = ROOT / "build" / "clients" / application
    requirements = HERE / "requirements" / f"{application}.txt"
    made_of = directory / "requirements.txt"
    python = directory / "bin" / "python"
    if not made_of.exists() or made_of.read_text() != requirements.read_text():
        print(f"making {directory.relative_to(ROOT)}", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", directory], check=True)
        # All that is needed is in the list, so there is nothing to resolve.
        install = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--no-deps", "-r", requirements]
        subprocess.run(install, check=True)
        made_of.write_text(requirements.read_text())
    return python


def check(application: str, server: RunningServer) -> bool:
    """Runs the application's script and prints what it prints; true if all is as it should be."""
    python = environment(application)
    print(f"\n{application}", flush=True)
    logged = len(server.log)
    started = time.monotonic()
    script = [python, HERE / f"check_{application}.py", f"{server.url}/v1"]
    try:
        passed = subprocess.run(script, timeout=_LONGEST_SECONDS).returncode == 0
    except subprocess.TimeoutExpired:
        print(f"did not end within {_LONGEST_SECONDS} s")
        return False
    errors = [line for line in server.log[logged:].splitlines() if refused(line)]
    meant = APPLICATIONS[application]
    if len(errors) != meant:
        print(f"FAILED  {len(errors)} answers were errors, {meant} meant to be:", *errors, sep="\n        ")
    print(f"{time.monotonic() - started:.0f} s", flush=True)
    return passed and len(errors) == meant


def refused(line: str) -> bool:
    """Whether a line of the server's log is about an answer of 4xx or 5xx."""
    if not line.startswith("{"):
        return False
    words = json.loads(line)["message"].split()  # POST /v1/chat/completions 400
    return len(words) == 3 and words[2].isdecimal() and int(words[2]) >= 400


def main() -> None:
    chosen = sys.argv[1:] or list(APPLICATIONS)
    if unknown := set(chosen) - set(APPLICATIONS):
        sys.exit(f"no checks of {', '.join(sorted(unknown))}; there are {', '.join(APPLICATIONS)}")
    names = ("--served-model-name", "SmolLM2-135M-Instruct", "--served-model-name", "text-embedding-3-small")  # llm embeds under the latter
    flags = ("--log-format", "json", "--max-model-len", "8192", "--kv-cache-memory", "768M", *names)
    with tempfile.TemporaryDirectory() as directory, running_server(Path(directory), *flags) as server:
        server.wait_until_ready()
        failed = [application for application in chosen if not check(application, server)]
    print(f"\n{len(chosen) - len(failed)} of {len(chosen)} applications passed" + (f"; not {', '.join(failed)}" if failed else ""))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
