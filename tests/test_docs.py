"""What the documentation names exists: links, commands with their flags, modules, endpoints."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
import re
from pathlib import Path

import pytest
import typer

import server.routes
from server.cli import app

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
INDEX = (ROOT / "docs" / "README.md").read_text()

OF_OCTAVO = re.compile(r"^\s*(?:\$ )?(?:\S*/)?octavo (serve|run-batch|chat|keys add|version)\b(.*)", re.DOTALL)
OF_LOADTEST = re.compile(r"^\s*(?:\$ )?\S*python3? -m (loadtest[\w.]*)(.*)", re.DOTALL)
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]+")


def cli_flags() -> dict[str, set[str]]:
    """By command, as `keys add`."""
    root = typer.main.get_command(app)
    commands = dict(root.commands)  # type: ignore[attr-defined]
    commands["keys add"] = commands.pop("keys").commands["add"]
    return {
        name: {"--help", *itertools.chain.from_iterable((*parameter.opts, *parameter.secondary_opts) for parameter in command.params)}
        for name, command in commands.items()
    }


def module_file(name: str) -> Path:
    path = ROOT / name.replace(".", "/")
    return path / "__main__.py" if path.is_dir() else path.with_suffix(".py")


def module_flags(name: str) -> set[str]:
    """What a module of loadtest, or one that it shares its arguments with, adds to its parser."""
    text = module_file(name).read_text()
    shared = re.findall(r"^from (loadtest[\w.]*) import", text, re.MULTILINE)
    return {"--help", *re.findall(r'"(--[a-z][a-z0-9-]+)"', text)}.union(*(module_flags(one) for one in shared))


def code_of(page: Path) -> list[str]:
    """Every line of a code block, and everything between backticks."""
    text = page.read_text()
    blocks = re.findall(r"^```\w*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```\w*\n.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.replace("\\\n", " ").splitlines()] + re.findall(r"`([^`]+)`", prose)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if re.match(r"\w+:", target):
            continue
        path, _, heading = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if heading:
            titles = re.findall(r"^#+ (.+)$", file.read_text(), re.MULTILINE)
            assert heading in {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}, target


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist_and_have_the_flags_that_they_are_given(page: Path) -> None:
    flags = cli_flags()
    known = set().union(*flags.values(), *(module_flags(f"loadtest.{file.stem}") for file in (ROOT / "loadtest").glob("*.py")))
    for code in code_of(page):
        if (command := OF_OCTAVO.match(code)) is not None:
            assert set(FLAG.findall(command[2])) <= flags[command[1]], code
        elif (module := OF_LOADTEST.match(code)) is not None and module[1] != "loadtest.NAME":
            assert module_file(module[1]).exists(), code
            assert set(FLAG.findall(module[2])) <= module_flags(module[1]), code
        elif (make := re.match(r"\s*(?:\$ )?make (\w[\w-]*)", code)) is not None:
            assert re.search(rf"^{make[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), code
        elif code.startswith("--") and not {"clients", "deployment.md"} & set(page.parts):  # which name other programs' flags
            assert FLAG.findall(code)[0] in known, code


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_files_that_are_named_exist(page: Path) -> None:
    for code in code_of(page):
        if re.fullmatch(r"(server|engine|kernels|loadtest|tests|configs)/[\w./*-]+", code):
            assert list(ROOT.glob(code.rstrip("/"))), code


def test_every_page_is_in_the_index_or_in_that_of_its_folder() -> None:
    for page in PAGES[1:]:
        name = page.relative_to(ROOT / "docs").as_posix()
        own = page.with_name("README.md")
        assert name == "README.md" or f"]({name})" in INDEX or (own.exists() and f"]({page.name})" in own.read_text()), name


def test_every_endpoint_and_command_is_in_the_index() -> None:
    for module in pkgutil.iter_modules(server.routes.__path__):
        router = getattr(importlib.import_module(f"server.routes.{module.name}"), "router", None)
        for route in () if router is None else router.routes:
            path = route.path.replace(":path}", "}")
            named = [f"`{path}`", *(f"`{method} {path}`" for method in route.methods)]
            assert not route.include_in_schema or any(name in INDEX for name in named), named
    for command in cli_flags():
        assert f"`octavo {command}" in INDEX, command


def test_tests_that_are_named_exist() -> None:
    defined = set(re.findall(r"def (test_\w+)", "\n".join(file.read_text() for file in (ROOT / "tests").rglob("test_*.py"))))
    named = {code for page in PAGES for code in code_of(page) if re.fullmatch(r"test_\w+", code)} - {"test_the_sdk"}
    assert len(named) > 70
    assert named <= defined, named - defined
