"""The attacks as a table, as a panel, and as what the model answers.

Brief, section 5. Every cell, box and verdict is computed from the ids of the two paths.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.attack_paths import Result
from g2c_serving.lab.attacks import ATTACKS, LIMIT, WEB_PAGE, Attack
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, choice
from g2c_serving.lab.plots import BLACK, GREY, Blocks
from g2c_serving.lab.provenance_panel import LOOKS as ORIGINS
from g2c_serving.lab.table import Table
from g2c_serving.process.streaming import OutputParser
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.request import SamplingParams

TEXT, PLACED, FORGED = "text", "placed", "forged"
LOOKS: dict[str, dict[str, Any]] = {
    TEXT: {"facecolor": "white", "edgecolor": GREY, "hatch": "", "label": "ordinary text"},
    PLACED: {**ORIGINS["reserved"], "edgecolor": "white", "hatch": "", "linewidth": 1,
             "label": "\u2713 a marker, from the template or the model"},
    FORGED: {**ORIGINS["forged"], "hatch": "", "label": "\u2717 a forged marker"},
}  # fmt: skip
SIZE = 8.22  # points: a character of the monospace font is 11 pixels wide at 160 an inch
WIDE = 0.99 * 8 * 160 / 11  # characters in a row
ROWS, HIGH, LINES = 2, 2.4, 4  # rows of boxes for each path, their height; lines that arrive


def table(tokenizer: Tokenizer) -> Table:
    """The ten, and the one that no tokenizer protects from: what is forged on each path."""
    rows = []
    for attack in (*ATTACKS, LIMIT):
        name = attack.name if attack is not LIMIT else f"{attack.name} (not protected)"
        rows.append((name, _cell(attack.naive(tokenizer)), _cell(attack.ours(tokenizer))))
    return Table(("attack", "naive path", "ours"), rows)


def _cell(result: Result) -> str:
    found = [marker.strip() for marker in result.forged.values()]
    return f"forged: {', '.join(found)}" if found else "nothing forged"


def answers(lm: LanguageModel, attack: Attack = WEB_PAGE) -> Table:
    """What the model writes on either path, greedily. ValueError for an attack on its output."""
    if attack.prompt is None:
        raise ValueError(f"attack {attack.name!r} has no prompt of its own: take {WEB_PAGE.name!r}")
    paths = {"naive": attack.naive(lm.tokenizer), "ours": attack.ours(lm.tokenizer)}
    end = lm.tokenizer.reserved["<|end|>"]
    params = SamplingParams(max_tokens=48, temperature=0, stop_token_ids=(end,))
    engine = Engine(roomy(lm), EngineConfig(dtype="float64"))
    prompts = [list(result.token_ids) for result in paths.values()]
    outputs = engine.generate(prompts, params)
    rows = [
        (name, _told(lm.tokenizer, output.token_ids))
        for name, output in zip(paths, outputs, strict=True)
    ]
    return Table(("path", f"{lm.name} writes"), rows)


def _told(tokenizer: Tokenizer, token_ids: Sequence[int]) -> str:
    parser = OutputParser(tokenizer)
    for token_id in token_ids:
        parser.feed(token_id)
    parser.finish()
    calls = [f"calls a tool: {call.text}" for call in parser.tool_calls()]
    return " ".join([*calls, *filter(None, [parser.text()])])


# ---- the panel ------------------------------------------------------------------------------


@dataclass
class Boxes:
    """Tokens as boxes, in characters from the left: of each its row, width, words, id and kind."""

    left: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    width: list[int] = field(default_factory=list)
    words: list[tuple[str, str]] = field(default_factory=list)
    kind: list[str] = field(default_factory=list)
    cut: tuple[bool, bool] = (False, False)  # are there tokens before these, and after


def panel(tokenizer: Tokenizer) -> Panel:
    """A list of the attacks: what arrives, the ids on both paths with their origin, the verdict."""
    attacks = {attack.name: attack for attack in (*ATTACKS, LIMIT)}
    controls = {"attack": choice("Attack", tuple(attacks))}

    def update(art: dict[str, Any], attack: str) -> str:
        return _update(art, tokenizer, attacks[attack])

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    figure.set_layout_engine("none")
    axes = figure.add_axes((0.005, 0, 0.99, 1))
    axes.set(xlim=(0, WIDE), ylim=(17.6, 0))
    axes.set_axis_off()
    art: dict[str, Any] = {"said": [_mono(axes, 0.3, 0.85 * i + 0.6) for i in range(LINES)]}
    for name, top in (("naive", 4.4), ("ours", 10.4)):
        tops = [top + 0.7 + HIGH * row for row in range(ROWS)]
        art[name] = {kind: Blocks(axes, 0, **look) for kind, look in LOOKS.items()}
        art[name] |= {"verdict": axes.text(0.3, top, "", fontsize=10, va="center"), "top": tops[0]}
        for colour in (BLACK, "white"):  # in each a line of text a row: fast to draw
            art[name]["words", colour] = [_mono(axes, 0.5, y + 0.65, colour) for y in tops]
            art[name]["ids", colour] = [_mono(axes, 0.5, y + 1.5, colour) for y in tops]
    handles = [art["naive"][kind] for kind in LOOKS]
    axes.legend(handles=handles, loc="lower center", ncols=3, fontsize=9,
                bbox_to_anchor=(0.5, 0), borderaxespad=0.1)  # fmt: skip
    return art


def _mono(axes: Axes, x: float, y: float, colour: str = BLACK) -> Any:
    """A line of text whose characters are one unit of the x axis wide."""
    look: dict[str, Any] = {"family": "monospace", "fontsize": SIZE, "color": colour}
    return axes.text(x, y, "", va="center", parse_math=False, **look)


def _update(art: dict[str, Any], tokenizer: Tokenizer, attack: Attack) -> str:
    said = [f"{who}: {shown(what)}" for who, what in attack.lines]
    for text, line in zip(art["said"], [*said, *[""] * LINES], strict=False):
        text.set_text(line)
    results = {"naive": attack.naive(tokenizer), "ours": attack.ours(tokenizer)}
    first = _first_difference(*results.values())
    for name, result in results.items():
        art[name]["verdict"].set_text(f"{name}: {_verdict(result)}")
        _show(art[name], lay_out(tokenizer, result, first))
    told = " ".join(f"{name}: {_verdict(result)}." for name, result in results.items())
    return f"{attack.name}: {attack.tries} {attack.guard} {told}"


def _verdict(result: Result) -> str:
    found = [f"{shown(name.strip())} at token {i}" for i, name in result.forged.items()]
    verdict = f"\u2717 forged: {', '.join(found)}" if found else "\u2713 nothing forged"
    return f"{len(result.token_ids)} ids, {verdict}"


def _first_difference(one: Result, other: Result) -> int:
    """The first token at which ids or markers differ."""
    for i, (a, b) in enumerate(zip(one.token_ids, other.token_ids, strict=False)):
        if a != b or one.acts.get(i) != other.acts.get(i):
            return i
    return 0


def lay_out(tokenizer: Tokenizer, result: Result, first: int) -> Boxes:
    """Boxes in two rows. Where not all fit, those long before token `first` are left out."""
    start = 0
    while (boxes := _place(tokenizer, result, start)).cut[1] and start < first - 3:
        start += 1
    return boxes


def _place(tokenizer: Tokenizer, result: Result, start: int) -> Boxes:
    boxes, x, row = Boxes(cut=(start > 0, False)), int(start > 0), 0
    kinds = marked(tokenizer, result)
    for i, token_id in enumerate(result.token_ids[start:], start):
        word, number = _spelled(tokenizer.token_bytes(token_id)), str(token_id)
        wide = max(len(word), len(number)) + 1
        if x + wide > WIDE - 1:
            row, x = row + 1, 0
        if row == ROWS:
            boxes.cut = (start > 0, True)
            break
        boxes.left.append(x)
        boxes.row.append(row)
        boxes.width.append(wide)
        boxes.words.append((word, number))
        boxes.kind.append(kinds.get(i, TEXT))
        x += wide
    return boxes


def marked(tokenizer: Tokenizer, result: Result) -> dict[int, str]:
    """Index of a token -> PLACED or FORGED. A marker that is spelled has all its tokens."""
    data = [tokenizer.token_bytes(token_id) for token_id in result.token_ids]
    starts = [0, *accumulate(map(len, data))]
    found = dict.fromkeys(result.placed, PLACED)
    for i, name in result.acts.items():
        spelled = name.strip().encode()
        at = b"".join(data).find(spelled, max(0, starts[i + 1] - len(spelled)))
        for j in range(len(data)):
            if starts[j] < at + len(spelled) and at < starts[j + 1]:
                found[j] = PLACED if i in result.placed else FORGED
    return found


def _spelled(data: bytes) -> str:
    """The bytes of a token on one line: a space as a dot, half a character as its bytes."""
    return shown(data.decode("utf-8", "backslashreplace")).replace(" ", "\u00b7")


def _show(where: dict[Any, Any], boxes: Boxes) -> None:
    left, wide = np.array(boxes.left), np.array(boxes.width)
    top = where["top"] + HIGH * np.array(boxes.row)
    for kind in LOOKS:
        chosen = np.array([k == kind for k in boxes.kind])
        where[kind].set_boxes(left[chosen] + 0.1, top[chosen], wide[chosen] - 0.2, HIGH - 0.25)
    for line, name in enumerate(("words", "ids")):
        for row in range(ROWS):
            where[name, "white"][row].set_text(_line(boxes, row, line, filled=True))
            before = "\u2026" if boxes.cut[0] and row == 0 else ""
            text = _line(boxes, row, line, filled=False, before=before)
            last = boxes.cut[1] and row == ROWS - 1
            where[name, BLACK][row].set_text(
                text.ljust(round(WIDE) - 1) + "\u2026" if last else text
            )


def _line(boxes: Boxes, row: int, line: int, filled: bool, before: str = "") -> str:
    """The words (line 0) or ids (1) of a row, of its markers alone or of what else is there."""
    spelled = before
    for i, kind in enumerate(boxes.kind):
        if boxes.row[i] == row and (kind != TEXT) == filled:
            pad = (boxes.width[i] - len(boxes.words[i][line])) // 2
            spelled = spelled.ljust(boxes.left[i] + pad) + boxes.words[i][line]
    return spelled


def shown(text: str) -> str:
    """`text` on one line, what is not ASCII as an escape: look-alikes look alike."""
    return text.replace("\n", "\\n").encode("ascii", "backslashreplace").decode()
