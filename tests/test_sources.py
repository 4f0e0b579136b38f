"""What the sources must not use, because it runs code that somebody sends or lets a request reach files."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parent.parent
FILES = [path for package in ("engine", "kernels", "server") for path in sorted((ROOT / package).rglob("*.py"))]

# Modules that make objects, and so run code, out of bytes.
FORBIDDEN_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "joblib", "jsonpickle"}
FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__"}
# Methods of ZeroMQ and PyTorch that pickle behind the scenes, and YAML's loaders of objects.
FORBIDDEN_METHODS = {"send_pyobj", "recv_pyobj", "unsafe_load", "full_load"}


def test_nothing_that_was_sent_is_unpickled_or_run() -> None:
    assert len(FILES) > 50
    nodes = [(path, node) for path in FILES for node in ast.walk(ast.parse(path.read_text()))]
    for path, node in nodes:
        where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
        if isinstance(node, ast.Import):
            assert not FORBIDDEN_MODULES & {alias.name.split(".")[0] for alias in node.names}, where
            assert "multiprocessing" not in {alias.name.split(".")[0] for alias in node.names}, f"{where}: its queues and pipes pickle"
        elif isinstance(node, ast.ImportFrom):
            assert (node.module or "").split(".")[0] not in FORBIDDEN_MODULES | {"multiprocessing"}, where
        elif isinstance(node, ast.Call):
            function = node.func
            if isinstance(function, ast.Name):
                assert function.id not in FORBIDDEN_CALLS, where
            elif isinstance(function, ast.Attribute):
                assert function.attr not in FORBIDDEN_METHODS, where
                shell = [keyword for keyword in node.keywords if keyword.arg == "shell"]
                assert not shell, f"{where}: no shell"
                if function.attr == "load" and ast.unparse(function.value) in ("torch", "np", "numpy", "yaml"):
                    safe = {keyword.arg: ast.unparse(keyword.value) for keyword in node.keywords}
                    assert safe.get("weights_only") == "True" or ast.unparse(function.value) == "np", where
                    assert safe.get("allow_pickle", "False") == "False", where
