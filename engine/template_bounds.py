"""Bounds on what a chat template may do, which Jinja's sandbox does not set: it keeps templates from files and code, not from the clock.

Every turn of a loop and every call of a macro looks at the clock, and operators refuse to make what no prompt could hold. The checks
are put into the template's syntax tree, under names that are made anew in each process, so that no template can put something in their
place.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Callable
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

# Of a text or list that a template makes on its way, and of the prompt; and seconds that all of it may take: no honest template does that.
MAX_LENGTH = 64 << 20
MAX_SECONDS = 5.0

_MAX_BITS = 4096  # of a whole number that a power or a product makes
_WIDE_FORMAT = re.compile(r"%[^a-zA-Z%]*(\d{4}|\*)")
_CHECK_CLOCK = f"_check_clock_{secrets.token_hex(8)}"
_JOIN = f"_join_{secrets.token_hex(8)}"


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """The immutable sandbox with bounded operators. Templates are compiled by `bounded_template`."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.filters |= {"format": _format, "center": _center}

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        sized = (str, list, tuple)
        if operator == "+" and isinstance(left, sized) and isinstance(right, sized):
            _check(len(left) + len(right) <= MAX_LENGTH)
        elif operator == "*" and isinstance(left, sized) and isinstance(right, int):
            _check(len(left) * right <= MAX_LENGTH)
        elif operator == "*" and isinstance(left, int) and isinstance(right, sized):
            _check(left * len(right) <= MAX_LENGTH)
        elif operator == "*" and isinstance(left, int) and isinstance(right, int):
            _check(left.bit_length() + right.bit_length() <= _MAX_BITS)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check(right < 0 or left.bit_length() * right <= _MAX_BITS)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return super().call_binop(context, operator, left, right)


def bounded_template(environment: BoundedEnvironment, source: str) -> Callable[[dict[str, Any]], Any]:
    """Compiles a template to a function from variables to an iterator over pieces of text.

    Raises jinja2.TemplateError when it is not valid; while iterating, SecurityError when it goes on for too long or makes too much.
    """
    tree = _Bounds().visit(environment.parse(source))
    code = environment.compile(tree)
    template = environment.template_class.from_code(environment, code, environment.make_globals({_JOIN: _join}))

    def generate(values: dict[str, Any]) -> Any:
        deadline = time.monotonic() + MAX_SECONDS

        def check_clock() -> None:
            _check(time.monotonic() < deadline)

        return template.generate({**values, _CHECK_CLOCK: check_clock})

    return generate


class _Bounds(NodeTransformer):
    """Puts the checks into a template's tree."""

    def visit_For(self, node: nodes.For) -> nodes.Node:  # noqa: N802
        return self._with_check(node)

    def visit_Macro(self, node: nodes.Macro) -> nodes.Node:  # noqa: N802
        return self._with_check(node)

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:  # noqa: N802
        self.generic_visit(node)
        return nodes.Call(nodes.Name(_JOIN, "load"), node.nodes, [], None, None).set_lineno(node.lineno)

    def _with_check(self, node: nodes.For | nodes.Macro) -> nodes.Node:
        self.generic_visit(node)
        call = nodes.Call(nodes.Name(_CHECK_CLOCK, "load"), [], [], None, None)
        node.body.insert(0, nodes.ExprStmt(call).set_lineno(node.lineno))
        return node


def _check(holds: bool) -> None:
    if not holds:
        raise SecurityError("it takes too long, or makes too long a text")


def _join(*parts: Any) -> str:
    texts = [str(part) for part in parts]
    _check(sum(map(len, texts)) <= MAX_LENGTH)
    return "".join(texts)


def _check_format(text: str) -> None:
    """Raises SecurityError for a %-format that pads to more than three digits, or to as many as an argument says."""
    _check(_WIDE_FORMAT.search(text) is None)


def _format(value: Any, *arguments: Any, **names: Any) -> str:
    text = str(value)
    _check_format(text)
    return text % (names or arguments)


def _center(value: Any, width: int = 80) -> str:
    _check(width <= MAX_LENGTH)
    return str(value).center(width)
