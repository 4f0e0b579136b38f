"""The command line as a user meets it: exit statuses, one sentence on stderr, nothing heavy imported."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from server import cli


def _octavo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "server.cli", *arguments], capture_output=True, text=True, timeout=60, check=False)


def _assert_one_sentence(result: subprocess.CompletedProcess[str], status: int) -> None:
    assert result.returncode == status, result.stderr
    assert result.stderr.startswith("octavo: ")
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr + result.stdout


def test_version_is_printed() -> None:
    result = _octavo("version")
    assert (result.returncode, result.stdout) == (0, "octavo 0.1.0\n")


def test_help_lists_every_setting_as_a_flag() -> None:
    from server.settings import all_settings

    result = subprocess.run(
        [sys.executable, "-m", "server.cli", "serve", "--help"],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"TERM": "dumb"},
    )
    for name in all_settings():
        assert "--" + name.replace("_", "-") in result.stdout


@pytest.mark.parametrize(
    "arguments",
    [
        ("serve", "--prot", "8000"),
        ("serve", "--port", "eight"),
        ("serve", "--port", "70000"),
        ("serve", "--device", "gpu"),
        ("serve", "--kv-cache-memory", "lots"),
        ("serve", "--block-size", "17"),
        ("serve", "--config", "/nonexistent.yaml"),
        ("serve", "--port", "0", "/nonexistent/model.gguf"),
        ("serve", "--host", "256.1.1.1"),
        ("serve", "one", "--model", "two"),
        ("serve", ""),
        ("serve", "--served-model-name", ""),
        ("serve", "--num-threads", "100000"),
        ("chat", "http://127.0.0.1:1", "--url", "http://127.0.0.1:2"),
        ("serv",),
    ],
    ids=" ".join,
)
def test_what_a_user_can_mend_ends_with_status_2_and_one_sentence(
    arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["octavo", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    said = capfd.readouterr()
    _assert_one_sentence(subprocess.CompletedProcess(arguments, int(ended.value.code or 0), said.out, said.err), 2)


@pytest.mark.parametrize("template", ["/nonexistent.jinja", "{% if %}"])
def test_so_does_what_is_found_when_the_engine_has_been_started(template: str) -> None:
    _assert_one_sentence(_octavo("serve", "--port", "0", "--chat-template", template), 2)


def test_a_taken_port_has_a_status_of_its_own() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        arguments = ("serve", "--port", str(taken.getsockname()[1]))
        result = _octavo(*arguments)
        _assert_one_sentence(result, 3)
        assert "--port" in result.stderr
        with Path("/dev/full").open("w") as log:
            unheard = subprocess.run([sys.executable, "-m", "server.cli", *arguments], stderr=log, timeout=60, check=False)
    assert unheard.returncode == 3, "also where the sentence cannot be written"


@pytest.fixture
def full_directory(tmp_path: Path) -> Iterator[Path]:
    """A file system with no room for one more file."""
    mount = ["mount", "-t", "tmpfs", "-o", "nr_inodes=1", "tmpfs", str(tmp_path)]
    if not shutil.which("mount") or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("a small file system cannot be mounted here")
    yield tmp_path
    subprocess.run(["umount", str(tmp_path)], check=True)


def test_a_full_disk_has_a_status_of_its_own(full_directory: Path) -> None:
    script = f"import sys, tempfile; tempfile.tempdir = {str(full_directory)!r}; from server.cli import main; main()"
    command = [sys.executable, "-c", script, "serve", "--port", "0"]
    _assert_one_sentence(subprocess.run(command, capture_output=True, text=True, timeout=60, check=False), 5)


def test_an_unknown_name_in_the_settings_file_is_told(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("max_num_seq: 3\n")
    result = _octavo("serve", "--config", str(path))
    _assert_one_sentence(result, 2)
    assert "max_num_seqs" in result.stderr


def test_chat_without_a_server_says_how_to_start_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    for arguments in (("--url", f"http://127.0.0.1:{port}"), (f"127.0.0.1:{port}",)):
        result = _octavo("chat", *arguments)
        assert result.returncode == 1
        assert "octavo serve" in result.stderr


def test_a_settings_file_that_cannot_be_read_is_told_in_one_sentence_with_the_place(tmp_path: Path) -> None:
    path = tmp_path / "settings.yaml"
    path.write_text("port: 8000\nhost: [1\nmodel: x\n")
    result = _octavo("serve", "--config", str(path))
    _assert_one_sentence(result, 2)
    assert f"{path} is not valid YAML: line 3" in result.stderr
    missing = _octavo("serve", "--config", "/nonexistent.yaml")
    assert missing.stderr == "octavo: cannot read the settings in /nonexistent.yaml: No such file or directory\n"


def test_neither_the_server_nor_its_engine_face_imports_torch_or_transformers() -> None:
    code = "import sys, server.cli, server.serve, engine.async_engine; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"


def test_the_command_line_imports_no_web_framework_before_the_engine_is_started() -> None:
    code = (
        "import sys, server.cli, server.settings, server.listen; print([m for m in ('fastapi', 'pydantic', 'uvicorn') if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert result.stdout == "[]\n"
