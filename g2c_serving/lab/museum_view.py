"""An exhibit on the page: what is seen with the real part and with the fault, side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from g2c_serving.lab.museum_place import Seen
from g2c_serving.lab.table import Table

HEAD = ("", "what is seen", "the engine", "with the fault")
DIFFERS = "\u2260"


@dataclass(frozen=True)
class Sight:
    """End a cell with it. `title` and `sentence` say what a user sees, and what is wrong."""

    title: str
    sentence: str
    real: Seen
    fault: Seen

    @property
    def table(self) -> Table:
        labels = dict.fromkeys([*self.real.values, *self.fault.values])
        rows = [self._row(label) for label in labels]
        if self.real.problem or self.fault.problem:
            ends = [seen.problem or "it came to its end" for seen in (self.real, self.fault)]
            rows.append((DIFFERS, "the run", *ends))
        return Table(HEAD, rows, words=len(HEAD))

    def _row(self, label: str) -> tuple[str, ...]:
        real, fault = (shown(seen.values.get(label, "")) for seen in (self.real, self.fault))
        return DIFFERS if real != fault else "", label, real, fault

    def __repr__(self) -> str:
        return f"{self.title}. With the fault: {self.sentence}.\n\n{self.table!r}"

    def _repr_markdown_(self) -> str:
        words = self.sentence.replace("<", "&lt;").replace("$", "\\$").replace("*", "\\*")
        return f"**{self.title}.** With the fault: {words}.\n\n{self.table._repr_markdown_()}"


def shown(value: Any) -> str:
    """A value as a cell of the table; in quotes where blanks at its ends, or lines, count."""
    if isinstance(value, list | tuple):
        return ", ".join(map(shown, value)) or "none"
    if isinstance(value, str):
        return value if value.split("\n")[0].strip() == value else repr(value)
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:,}" if is_number else str(value)
