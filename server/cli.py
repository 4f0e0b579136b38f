"""The command line: `octavo serve | run-batch | chat | top | keys | version`.

Exit statuses: 0 all went well, 1 the engine died (or no server answers `chat` or `top`), 2 a setting or a model that cannot work, 3 the
port is taken, 4 the supervisor gave the server up, 5 the disk is full, 130 and 143 a second Ctrl-C or SIGTERM cut the server short.
docs/operations.md has them as a table.
"""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from engine.config import EngineConfig
from engine.errors import ConfigError, DiskFullError, EngineDeadError, ModelLoadError, is_disk_full
from octavo import __version__
from server.access import keys_command
from server.config import ServerConfig
from server.settings import Setting, all_settings, load_configs

EXIT_ENGINE_DIED = 1
EXIT_BAD_SETTING = 2
EXIT_PORT_TAKEN = 3
EXIT_DISK_FULL = 5
EXIT_UNREACHABLE = 1  # the server that `octavo top` is to watch

_DEFAULT_URL = "http://127.0.0.1:8000"

app = typer.Typer(
    help="Octavo: an OpenAI-compatible async inference server for large language models.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> None:
    """Run the command line and exit with its status: one sentence on stderr for what the user can mend, never a traceback."""
    if not sys.stdout.isatty():
        os.environ.setdefault("TERMINAL_WIDTH", "140")  # typer's: help in a pipe is searched, so no name in it may be cut
    try:
        status = app(standalone_mode=False)
    except Exception as error:
        # typer may carry a copy of click under a name of its own, so its errors are told by their face.
        if hasattr(error, "format_message") and hasattr(error, "exit_code"):
            # An empty message means that help was printed in its place (`octavo` alone).
            _fail(error.format_message(), error.exit_code)
        if type(error).__name__ == "Abort":
            sys.exit(130)
        if isinstance(error, ConfigError | ModelLoadError):
            _fail(str(error), EXIT_BAD_SETTING)
        if isinstance(error, EngineDeadError):
            _fail(str(error), EXIT_ENGINE_DIED)
        if isinstance(error, DiskFullError) or is_disk_full(error):
            _fail(f"the disk is full: {error}", EXIT_DISK_FULL)
        raise
    sys.exit(status if isinstance(status, int) else 0)


def _serve(**given: Any) -> int:
    """Serve a model over HTTP. With no arguments at all: the default model on http://127.0.0.1:8000.

    Settings are taken from flags, then from the settings file, then from their defaults.
    """
    from server import listen

    engine_config, server_config = _configs(given)
    try:
        listener = listen.bind(server_config)
    except listen.PortTakenError as error:
        _fail(str(error), EXIT_PORT_TAKEN)
    with listener:
        if server_config.supervise:
            from server.supervisor import supervise

            status = supervise(server_config)
            if status is not None:
                return status
        # The engine process starts before this one imports anything heavy, so that the two start-ups overlap.
        from engine.async_engine import AsyncLLMEngine

        engine = AsyncLLMEngine(engine_config)
        from server.serve import serve

        return serve(engine, server_config, listener)


def _run_batch(source: Path, target: Path, **given: Any) -> int:
    """Answer the requests in the file INPUT, one line of JSON each as for /v1/batches, and write the answers to the file OUTPUT.

    Begun again after an interruption, it goes on where it was. Flags are those of `octavo serve`.
    """
    engine_config, server_config = _configs(given)
    import asyncio

    from server.batches.offline import plan, run_batch

    lines, num_done = plan(source, target)  # what is wrong with the files is told before the model is loaded
    if not lines:
        print(f"octavo: all {num_done} requests were answered before", file=sys.stderr)
        return 0
    from engine.async_engine import AsyncLLMEngine

    num_failed = asyncio.run(run_batch(AsyncLLMEngine(engine_config), server_config, source, target))
    if num_failed:
        print(f"octavo: {num_failed} requests failed: {target} says why", file=sys.stderr)
    return 0


def _configs(given: dict[str, Any]) -> tuple[EngineConfig, ServerConfig]:
    """What flags and the settings file say. Raises ConfigError."""
    settings_file = given.pop("config", None)
    model = given.pop("model_argument", None)
    flags = {name: value for name, value in given.items() if value not in (None, [], ())}
    if model is not None:
        if "model" in flags:
            raise ConfigError("the model is named twice: as an argument and by --model")
        flags["model"] = model
    configs = load_configs(flags, settings_file)
    _check_kernels()
    return configs


def _check_kernels() -> None:
    """Hugging Face has a package called `kernels` too. Raises ConfigError when it stands where Octavo's should."""
    spec = importlib.util.find_spec("kernels")
    if spec is None or spec.origin is None or not Path(spec.origin).with_name("ops.py").exists():
        raise ConfigError("another package called `kernels` is installed in the place of Octavo's: give Octavo an environment of its own")


def _flag(setting: Setting) -> inspect.Parameter:
    """The command-line option of one setting. None means that it was not given."""
    name = "--" + setting.name.replace("_", "-")
    metavar = None
    kind: Any = setting.kind
    if setting.choices:
        metavar = "[" + "|".join(setting.choices) + "]"
    elif setting.is_size:
        kind, metavar = str, "SIZE"
    elif setting.kind is tuple:
        kind = list[str]
    names = [f"{name}/--no-{name[2:]}"] if setting.kind is bool else [name]
    shown = setting.help if setting.default in (None, "", ()) else f"{setting.help} (default: {_show(setting.default)})"
    panel = "Engine" if setting.owner.__name__ == "EngineConfig" else "Server"
    option = typer.Option(*names, help=shown, metavar=metavar, envvar=setting.envvar, show_default=False, rich_help_panel=panel)
    return inspect.Parameter(setting.name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, int) and value >= 1 << 20 and value % (1 << 20) == 0:
        return f"{value >> 20}M"
    return str(value)


def _with_settings(run: Callable[..., int], positional: dict[str, Any]) -> Callable[..., int]:
    """`run` with a signature made of its positional arguments and of the settings, which is what typer reads."""

    def command(**given: Any) -> int:
        return run(**given)

    config = typer.Option("--config", "-c", help="settings file in YAML, as in configs/", metavar="FILE", show_default=False)
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters = [
        *(inspect.Parameter(name, keyword, default=default, annotation=kind) for name, (kind, default) in positional.items()),
        inspect.Parameter("config", keyword, default=None, annotation=Annotated[str | None, config]),
        *(_flag(setting) for setting in all_settings().values()),
    ]
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    command.__doc__ = run.__doc__
    return command


_MODEL = typer.Argument(help=all_settings()["model"].help, metavar="MODEL", show_default=False)
_INPUT = typer.Argument(help="file of requests", metavar="INPUT", show_default=False)
_OUTPUT = typer.Argument(help="file for the answers", metavar="OUTPUT", show_default=False)

app.command("serve")(_with_settings(_serve, {"model_argument": (Annotated[str | None, _MODEL], None)}))
app.command("run-batch")(
    _with_settings(
        _run_batch,
        {"source": (Annotated[Path, _INPUT], inspect.Parameter.empty), "target": (Annotated[Path, _OUTPUT], inspect.Parameter.empty)},
    )
)


@app.command("chat")
def chat(
    url_argument: Annotated[str | None, typer.Argument(help="where the server is", metavar="URL", show_default=False)] = None,
    url: Annotated[str | None, typer.Option(help=f"the same (default: {_DEFAULT_URL})", show_default=False)] = None,
    model: Annotated[str | None, typer.Option(help="model to ask for; none: the server's first", show_default=False)] = None,
    system: Annotated[str | None, typer.Option(help="system prompt", show_default=False)] = None,
    api_key: Annotated[str | None, typer.Option(help="key to send", envvar="OCTAVO_API_KEY", show_default=False)] = None,
    temperature: Annotated[float, typer.Option(help="0: greedy")] = 0.7,
    max_tokens: Annotated[int, typer.Option(help="longest answer, in tokens")] = 512,
) -> int:
    """Talk to a running server from the terminal. /reset forgets the conversation, /exit or /quit leaves."""
    from server.terminal_chat import TerminalChat

    if url_argument is not None and url is not None:
        raise ConfigError("the server is named twice: as an argument and by --url")
    return TerminalChat(url_argument or url or _DEFAULT_URL, model, system, api_key, temperature, max_tokens).run()


@app.command("top")
def top(
    url: Annotated[str, typer.Argument(help="where the server is", metavar="URL")] = _DEFAULT_URL,
    api_key: Annotated[
        str | None, typer.Option(help="an admin's key, where the server asks for keys", envvar="OCTAVO_API_KEY", show_default=False)
    ] = None,
    interval: Annotated[float, typer.Option(help="seconds between two looks", min=0.5, max=60)] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="print one picture and end")] = False,
) -> int:
    """Watch a running server: its requests, its blocks, where its time goes. q or Ctrl-C quits."""
    from rich.console import Console

    from server.top.live import show_live, show_once
    from server.top.state import Source, UnreachableError

    try:
        return show_once(Source(url, api_key), Console()) if once else show_live(Source(url, api_key), Console(), interval)
    except UnreachableError as error:
        _fail(str(error), EXIT_UNREACHABLE)


app.add_typer(keys_command.app, name="keys")


@app.command("version")
def version() -> None:
    """Print the version."""
    typer.echo(f"octavo {__version__}")


def _fail(message: str, status: int) -> NoReturn:
    if message:
        with contextlib.suppress(OSError):  # a full disk under the log changes no status
            os.write(sys.stderr.fileno(), f"octavo: {message}\n".encode(errors="replace"))
    sys.exit(status)


if __name__ == "__main__":
    main()
