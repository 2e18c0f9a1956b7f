"""The live panel: users type, press Run, and see queue, blocks, drafts and text move.

The picture is drawn anew every few steps while the engine works. Left, what each user sees. Right,
whose each block was, step by step: one in two halves is shared by two answers, grey ones are kept
for whoever begins in the same way. Below, how many ran and how many waited.
"""

from __future__ import annotations

import functools
import textwrap
from collections import defaultdict
from collections.abc import Generator
from typing import Any

from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, findfont, get_font
from matplotlib.ticker import MaxNLocator

from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.live_users import ASKED, BUDGETED, FIXED, KEPT, OFF, Room, opened, sentence
from g2c_serving.lab.panel import Frame, Panel, choice, entry, slider, stops, toggle
from g2c_serving.lab.plots import Blocks, columns, sheet, unmarked
from g2c_serving.output import RequestOutput

EVERY = 2  # steps from one picture to the next
WIDE, LINES = 58, 3  # of a text, shown: characters in a line, its last lines
MOST_STEPS = 16  # that the picture has room for at first
FONT = "monospace"


def panel(lm: LanguageModel, drafter: LanguageModel | None = None) -> Panel:
    """A line for each user, seats, blocks, a fork, drafts where there is a drafter; Run."""
    controls: dict[str, Any] = {name: entry(name, words) for name, words in ASKED.items()}
    controls["seats"] = slider("Seats", 1, 5, 3)
    controls["blocks"] = stops("Blocks", (8, 12, 16, 24, 32), 16)
    controls["fork"] = toggle("A second answer for the first of them: a fork", True)
    if drafter is not None:
        controls["speculation"] = choice("Drafts", (OFF, FIXED, BUDGETED), FIXED)

    def update(art: dict[str, Any], **v: Any) -> Generator[str, None, str]:
        asked = {name: v[name] for name in ASKED}
        drafts = v.get("speculation", OFF)
        room = opened(lm, drafter, asked, v["seats"], v["blocks"], drafts, v["fork"])
        for step, _ in enumerate(room.run()):
            if step % EVERY == 0:
                _show(art, room)
                now = f"{room.waiting[-1]} waiting, {room.running[-1]} running"
                yield Frame(f"Step {step + 1}: {now}.")
        _show(art, room)
        return sentence(room)

    return Panel(_draw, update, controls, run="Run")


def _draw(figure: Figure) -> dict[str, Any]:
    grid = figure.add_gridspec(2, 2, width_ratios=(6, 5), height_ratios=(5, 3))
    words, blocks = figure.add_subplot(grid[:, 0]), figure.add_subplot(grid[0, 1])
    queue, lines = figure.add_subplot(grid[1, 1]), len(ASKED) + 1
    sheet(words, (0, 1), (lines - 0.1, -0.2))
    blocks.set(ylabel="block", xticks=[])
    blocks.grid(False)
    queue.set(xlabel="step", ylim=(0, lines + 0.5), yticks=range(0, lines + 1, 2))
    queue.xaxis.set_major_locator(MaxNLocator(integer=True))
    art: dict[str, Any] = {"queue": queue, "blocks": blocks}
    art["kept"] = Blocks(blocks, 0, facecolor="#DDDDDD", hatch="", edgecolor="none")
    art["owned"] = [Blocks(blocks, k, edgecolor="white", linewidth=0) for k in range(lines)]
    art["keys"] = [Blocks(words, k) for k in range(lines)]
    art["states"] = [words.text(0.05, y, "", va="top", fontsize=9) for y in range(lines)]
    look: dict[str, Any] = {"va": "top", "fontsize": 7.5, "family": FONT, "linespacing": 1.05}
    art["texts"] = [words.text(0.05, y + 0.27, "", parse_math=False, **look) for y in range(lines)]
    (art["waiting"],) = queue.plot([], [], label="waiting", **unmarked(1))
    (art["running"],) = queue.plot([], [], label="running", **unmarked(0))
    queue.legend(loc="upper right", fontsize=8, ncols=2)
    return art


def _show(art: dict[str, Any], room: Room) -> None:
    for y, (state, text) in enumerate(zip(art["states"], art["texts"], strict=True)):
        user = room.users[y] if y < len(room.users) else None
        state.set_text("" if user is None else f"{user.name}  {room.state(user)}")
        text.set_text("" if user is None or user.output is None else _words(user.output))
        art["keys"][y].set_boxes([0] if user else [], y, 0.03, 0.3)
    last = max(MOST_STEPS, len(room.waiting))
    art["queue"].set_xlim(0, last)
    art["blocks"].set(xlim=(0, last), ylim=(-0.5, room.engine.config.num_blocks - 0.5))
    steps = [k + 0.5 for k in range(len(room.waiting))]
    art["waiting"].set_data(steps, room.waiting)
    art["running"].set_data(steps, room.running)
    _show_blocks(art, room)


def _show_blocks(art: dict[str, Any], room: Room) -> None:
    """Whose each block was, step by step: an equal part of its height for each owner."""
    boxes: dict[str, list[tuple[float, float, float]]] = defaultdict(list)  # left, bottom, height
    for step, found in enumerate(room.owners):
        owners: dict[int, list[str]] = defaultdict(list)
        for name, blocks in found.items():
            for block in blocks:
                owners[block].append(name)
        for block, names in owners.items():
            height = 0.9 / len(names)
            for k, name in enumerate(names):
                boxes[name].append((step, block - 0.45 + k * height, height))
    names = [user.name for user in room.users]
    names += [""] * (len(art["owned"]) - len(names))  # those of a former run have left
    for name, artist in [*zip(names, art["owned"], strict=True), (KEPT, art["kept"])]:
        left, bottom, heights = columns(boxes[name], 3)
        artist.set_boxes(left, bottom, 1.0, heights)


def _words(output: RequestOutput) -> str:
    """The last lines of a text, or of its tool call; a box for what the picture's font lacks."""
    said = " ".join([output.text, *(f"call {call.text}" for call in output.tool_calls)])
    plain = "".join(c if ord(c) in _drawable() else "\u25a1" for c in " ".join(said.split()))
    lines = textwrap.wrap(plain, WIDE)
    return "\n".join(lines if len(lines) <= LINES else ["...", *lines[-LINES + 1 :]])


@functools.cache
def _drawable() -> frozenset[int]:
    """The characters that the picture's font has."""
    return frozenset(get_font(findfont(FontProperties(family=FONT))).get_charmap())
