"""A small table for a notebook's cell: Markdown where a page renders it, aligned text elsewhere."""

from __future__ import annotations

from collections.abc import Sequence


class Table:
    """`head` names the columns; the first is flush left, the others, numbers mostly, flush right.

    Raises ValueError for a row that is longer or shorter than the head.
    """

    def __init__(self, head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        for row in rows:
            if len(row) != len(head):
                raise ValueError(f"row {list(row)} has {len(row)} cells for {len(head)} columns")
        self.head, self.rows = tuple(head), [tuple(row) for row in rows]

    def __repr__(self) -> str:
        widths = [max(map(len, column)) for column in zip(self.head, *self.rows, strict=True)]
        lines = []
        for first, *others in (self.head, *self.rows):
            cells = [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
            lines.append("  ".join([first.ljust(widths[0]), *cells]).rstrip())
        return "\n".join(lines)

    def _repr_markdown_(self) -> str:
        rule = ["---", *["---:"] * (len(self.head) - 1)]
        lines = (self.head, rule, *self.rows)
        return "\n".join(f"| {' | '.join(map(_as_markdown, line))} |" for line in lines)


def _as_markdown(cell: str) -> str:
    """A cell such as `<|user|>` neither ends its column nor looks like a tag."""
    return cell.replace("|", "\\|").replace("<", "&lt;")
