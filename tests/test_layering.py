"""Imports point one way: server -> engine -> kernels."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {"kernels": {"kernels"}, "engine": {"kernels", "engine"}, "server": {"kernels", "engine", "server"}}
FILES = [path for package in MAY_IMPORT for path in sorted((ROOT / package).rglob("*.py"))]


def imported_packages(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}:{node.lineno}: relative imports hide where a name comes from"
            names.add(node.module or "")
    return {name.split(".")[0] for name in names}


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_no_package_imports_one_above_it(package: str) -> None:
    files = [path for path in FILES if path.relative_to(ROOT).parts[0] == package]
    assert files
    for path in files:
        wrong = imported_packages(path) & set(MAY_IMPORT) - MAY_IMPORT[package]
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_kernels_know_no_sequences_and_the_engine_no_http() -> None:
    for path in FILES:
        package = path.relative_to(ROOT).parts[0]
        imported = imported_packages(path)
        if package != "server":
            assert not imported & {"fastapi", "starlette", "uvicorn", "pydantic", "sse_starlette"}, path
        else:
            assert "torch" not in imported, path


def test_no_file_is_more_than_one_concept() -> None:
    for path in FILES:
        assert len(path.read_text().splitlines()) <= 500, f"{path.relative_to(ROOT)} passes 500 lines: find the seam"
