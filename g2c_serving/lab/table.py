"""A small table for a notebook's cell: Markdown where a page renders it, aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence


class Table:
    """`head` names the columns; the first is flush left, the others, numbers mostly, flush right.
    `words`: so many columns at the left hold words, and are flush left.

    Raises ValueError for a row that is longer or shorter than the head.
    """

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[str]], words: int = 1) -> None:
        for row in rows:
            if len(row) != len(head):
                raise ValueError(f"row {list(row)} has {len(row)} cells for {len(head)} columns")
        self.head, self.rows, self.words = tuple(head), [tuple(row) for row in rows], words

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = []
        for row in (self.head, *self.rows):
            cells = [
                cell.ljust(width) if k < self.words else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            lines.append("  ".join(cells).rstrip())
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        rule = ["---" if k < self.words else "---:" for k in range(len(self.head))]
        lines = (self.head, rule, *self.rows)
        return "\n".join(f"| {' | '.join(map(_as_markdown, line))} |" for line in lines)


def _as_markdown(cell: str) -> str:
    """A cell such as `<|user|>` neither ends its column nor looks like a tag, and two prices are no
    formula."""
    return cell.replace("|", "\\|").replace("<", "&lt;").replace("$", "\\$")
