"""The families' formats by name, and which of them a model's chat template speaks."""

from __future__ import annotations

from engine.tool_calls.call_list import GraniteParser, Phi4Parser
from engine.tool_calls.deepseek import DeepSeekParser
from engine.tool_calls.hermes import HermesParser
from engine.tool_calls.llama_json import LlamaJsonParser
from engine.tool_calls.mistral import MistralParser
from engine.tool_calls.parser import ToolParser
from engine.tool_calls.pythonic import PythonicParser

FORMATS: dict[str, type[ToolParser]] = {
    "hermes": HermesParser,
    "llama3_json": LlamaJsonParser,
    "pythonic": PythonicParser,
    "mistral": MistralParser,
    "deepseek_v3": DeepSeekParser,
    "granite": GraniteParser,
    "phi4_mini": Phi4Parser,
}
"""By the names that --tool-call-parser takes."""

# The first whose texts all stand in the template. Templates write the calls of earlier turns, or tell the model how to.
_SIGNS = (
    ("mistral", ("[TOOL_CALLS]",)),
    ("deepseek_v3", ("<｜tool▁call▁begin｜>",)),
    ("phi4_mini", ("<|tool|>",)),
    ("granite", ("<|tool_call|>",)),
    ("hermes", ("<tool_call>",)),
    ("pythonic", ("<|python_start|>",)),
    ("pythonic", ("func_name1(params_name1",)),
    ("llama3_json", ('"parameters"', "ipython")),
)


def find_format(template: str) -> str:
    """The name of the format. Templates without a sign of any, or of tools at all, get the one that the fallback teaches."""
    return next((name for name, signs in _SIGNS if all(sign in template for sign in signs)), "hermes")
