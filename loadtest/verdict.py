"""What became of every request of a scenario, and whether that was as it must be."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from rich.console import Console
from rich.table import Table

from loadtest.client import Answer


@dataclass
class Ledger:
    """Counts of requests by what became of them."""

    sent: int = 0
    answered: int = 0
    left: int = 0  # by the client, on purpose
    refused: Counter[str] = field(default_factory=Counter)  # with OpenAI's error object, by status and code
    lost: list[str] = field(default_factory=list)  # no answer, or half of one
    wrong: list[str] = field(default_factory=list)  # answered, but not with what must come

    def enter(self, answer: Answer, expected: list[str] | None = None, refusals: Callable[[int], bool] = lambda status: False) -> None:
        """Enter an answer that was read to its end. `refusals` says which statuses are refusals that this request may get."""
        error = answer.error
        if error is not None:
            status = answer.status if answer.status != 200 else 500  # a stream that ended with an error
            self.refused[f"{status} {error['code'] or error['type']}"] += 1
            if not refusals(status):
                self.wrong.append(f"refused with {status}: {error['message']}")
        elif answer.status != 200 or not answer.is_whole:
            self.lost.append(f"status {answer.status}, {len(answer.body)} bytes: {answer.body[-80:]!r}")
        else:
            self.answered += 1
            if expected is not None and (texts := answer.texts()) != expected:
                self.wrong.append(f"other text than the undisturbed answer: {texts} instead of {expected}")


class Verdict:
    """Rows of a table, each with a bound that it keeps or breaks."""

    def __init__(self, title: str) -> None:
        self._table = Table("", "", "must be", title=title, title_justify="left")
        self._failures = 0

    def note(self, name: str, value: object) -> None:
        self._table.add_row(name, str(value), "")

    def check(self, name: str, value: object, bound: str, kept: bool) -> None:
        self._failures += not kept
        self._table.add_row(name, f"[{'green' if kept else 'bold red'}]{value}", bound)

    def ledger(self, ledger: Ledger) -> None:
        self.note("requests sent", ledger.sent)
        self.note("answered", ledger.answered)
        for reason, count in sorted(ledger.refused.items()):
            self.note(f"refused: {reason}", count)
        if ledger.left:
            self.note("left by the client", ledger.left)
        accounted = ledger.answered + ledger.left + ledger.refused.total()
        self.check("lost", ledger.sent - accounted, "0", ledger.sent == accounted and not ledger.lost)
        self.check("wrong", len(ledger.wrong), "0", not ledger.wrong)
        for problem in (ledger.lost + ledger.wrong)[:5]:
            self.note("", problem[:300])

    def end(self) -> None:
        """Print the table, and exit with status 1 where a bound was broken."""
        Console(width=140).print(self._table)
        sys.exit(1 if self._failures else 0)
