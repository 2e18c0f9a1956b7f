"""What became of some streams: what each user has seen, and the blocks in use step by step.

Brief, section 6: stop checks, streaming and detokenising happen behind the device's back. A user
who goes away takes nobody's time: the request is aborted between two steps, and its blocks are free
again while the others go on. Measured here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from g2c_serving.history import StepRecord
from g2c_serving.lab.plots import BLACK, Picture, new_figure, picture, source_note, style, unmarked
from g2c_serving.lab.table import Table
from g2c_serving.output import RequestOutput

LETTERS = 44  # of a text
WITHIN = 4  # steps after which a cancelled request is gone for certain


def table(seen: Mapping[str, Sequence[RequestOutput]]) -> Table:
    """By user, of the outputs that each has got, in order: how many, and the last one."""
    rows = []
    for name, outputs in seen.items():
        last, text = outputs[-1], outputs[-1].text
        text = repr(text if len(text) <= LETTERS else text[: LETTERS - 1] + "\u2026")
        count, tokens = str(len(outputs)), str(len(last.token_ids))
        rows.append((name, count, tokens, last.finish_reason or "left before the end", text))
    return Table(("user", "outputs seen", "tokens in the last", "ended by", "its text"), rows)


def used_blocks(history: Sequence[StepRecord], num_blocks: int) -> list[int]:
    """At the end of each step."""
    return [num_blocks - record.num_free_blocks for record in history]


def draw(history: Sequence[StepRecord], num_blocks: int, left_at: int, who: str) -> Picture:
    """Blocks in use over the steps; `who` went away when `left_at` steps were over."""
    used = used_blocks(history, num_blocks)
    before, after = used[left_at - 1], used[min(left_at + WITHIN, len(used)) - 1]
    figure = new_figure((8, 2.4))
    with style():
        axes = figure.subplots()
        axes.step(range(len(used)), used, where="post", **unmarked(0))
        axes.axvline(left_at, color=BLACK, linestyle=":", linewidth=1.2)
        axes.annotate(
            f" {who} goes away", (left_at, 1), xycoords=("data", "axes fraction"), va="top"
        )
        axes.set(xlabel="step", ylim=(0, 1.25 * max(used) + 1), xlim=(0, len(used)))
        axes.set_title("blocks in use", fontsize=11)
        source_note(axes, "Measured here")
    return picture(
        figure,
        f"{len(used)} steps. {who} goes away after {left_at}: {before} blocks were in use, "
        f"{WITHIN} steps later {after} are; at the end {used[-1]}.",
    )
