"""How models of each family mark their reasoning."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ReasoningFormat:
    """The texts around reasoning. The first of each is what the model's template writes."""

    begins: tuple[str, ...]
    ends: tuple[str, ...]
    begins_unmarked: bool = False  # an answer is reasoning from its first token on, whether or not the beginning is marked

    def is_open(self, prompt: str) -> bool:
        """Whether the prompt ends within reasoning, so that the answer begins there."""
        return not self.is_closed(prompt) and (self.begins_unmarked or prompt.rstrip().endswith(self.begins))

    def is_closed(self, prompt: str) -> bool:
        """Whether the template has closed reasoning at once, because none is wanted."""
        return prompt.rstrip().endswith(self.ends)


_THINK = (("<think>",), ("</think>",))

FORMATS = {
    "qwen3": ReasoningFormat(*_THINK),
    # Its first templates did not write the beginning, and the model does not always.
    "deepseek_r1": ReasoningFormat(*_THINK, begins_unmarked=True),
    "granite": ReasoningFormat(
        ("Here is my thought process:", "Here's my thought process:"), ("Here is my response:", "Here's my response:")
    ),
    "mistral": ReasoningFormat(("[THINK]",), ("[/THINK]",)),
}
"""By the names that --reasoning-parser takes."""


def find_format(template: str) -> ReasoningFormat | None:
    """The format of the model with this chat template; None where it does not reason."""
    return next((FORMATS[name] for name in ("mistral", "qwen3", "granite") if FORMATS[name].ends[0] in template), None)
