"""One output, token by token: its bytes, what waits, what is shown; beside each token for itself.

Brief, section 5. The parser is the engine's own (`process/streaming.py`). The ids are fixed, since
a small model seldom writes what they hold: a heart, which this vocabulary has in three tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, GREEN, GREY, ORANGE, Blocks, columns, sheet
from g2c_serving.lab.words import many
from g2c_serving.process.streaming import OutputParser
from g2c_serving.process.tokenizer import Tokenizer

HEART = "\u2764"
BROKEN = "\ufffd"
TEXTS: dict[str, tuple[bytes | str, ...]] = {  # str: encoded; bytes: one token each
    "a heart of three tokens": (f"I {HEART} tea and cake.",),
    "cut off inside the heart": ("I like tea and I ", HEART.encode()[:2]),
    "a heart that lacks a byte": ("I ", HEART.encode()[:2], " tea and cake."),
}
NO_STOP = "none"
STOPS = (NO_STOP, "tea time", "cake", HEART)
MOST = 13  # columns: the tokens, and the end of the output

SHOWN, WAITS, WRONG, PLAIN = "shown", "waits", "broken", "bytes"
LOOKS: dict[str, dict[str, Any]] = {
    PLAIN: {"facecolor": "white", "edgecolor": GREY, "hatch": "", "label": "bytes of the token"},
    SHOWN: {"facecolor": "#BFE5D9", "edgecolor": GREEN, "hatch": "", "label": "\u2713 shown"},
    WAITS: {"facecolor": "#E4E4E4", "edgecolor": GREY, "hatch": "...", "label": "\u2026 waits"},
    WRONG: {"facecolor": "#FFD9B8", "edgecolor": ORANGE, "hatch": "//",
            "label": "\u2717 broken character"},
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """One token, or the end of the output (`data` empty): its text for itself, what the parser
    gives out with it, and what waits after it."""

    data: bytes
    alone: str
    given: str
    held_text: str
    held_bytes: bytes
    stopped_by: str | None

    @property
    def waits(self) -> str:
        return _spaced(self.held_text) + _escaped(self.held_bytes)


def token_ids(tokenizer: Tokenizer, parts: Sequence[bytes | str]) -> list[int]:
    """The ids of TEXTS: a byte is the id of the same number."""
    ids = (tokenizer.encode(part) if isinstance(part, str) else list(part) for part in parts)
    return [token_id for some in ids for token_id in some]


def rows(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> list[Row]:
    """A row for each token up to a stop string, and one for the end."""
    parser, found = OutputParser(tokenizer, stop), []
    for token_id in ids:
        stopped_by = parser.feed(token_id)
        data = tokenizer.token_bytes(token_id)
        given = "".join(piece.text for piece in parser.pieces if piece.at == parser.num_fed)
        found.append(Row(data, data.decode("utf-8", "replace"), given, *parser.held, stopped_by))
        if stopped_by is not None:
            return found
    before = len(parser.text())
    stopped_by = parser.finish()
    return [*found, Row(b"", "", parser.text()[before:], "", b"", stopped_by)]


def panel(tokenizer: Tokenizer) -> Panel:
    """A slider over the tokens that have arrived."""
    ids = {name: token_ids(tokenizer, parts) for name, parts in TEXTS.items()}
    controls = {
        "tokens": slider("Tokens that have arrived", 1, MOST, 4),
        "text": choice("The model writes", tuple(TEXTS)),
        "stop": choice("Stop string", STOPS),
    }

    def update(art: dict[str, Any], tokens: int, text: str, stop: str) -> str:
        found = rows(tokenizer, ids[text], () if stop == NO_STOP else (stop,))
        return f"{text[0].upper()}{text[1:]}, stop string {stop}. {_update(art, found, tokens)}"

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    sheet(axes, (-2.35, MOST), (-2.3, 3.3))
    words = ("bytes", "each for itself", "the parser")
    for y, word in zip((2.5, 1.5, 0.5), words, strict=True):
        axes.text(-0.15, y, word, ha="right", va="center", fontsize=9.5)
    art: dict[str, Any] = {"boxes": {k: Blocks(axes, 0, **look) for k, look in LOOKS.items()}}
    art["now"] = Blocks(axes, 0, facecolor="none", edgecolor=BLACK, hatch="", linewidth=2)
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.85}
    look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 8.5, "bbox": box}
    art["cells"] = [[axes.text(x + 0.5, y, "", **look) for x in range(MOST)]
                    for y in (2.5, 1.5, 0.5)]  # fmt: skip
    art["said"] = [axes.text(-2.3, y, "", fontsize=11, va="center") for y in (-0.55, -1.25, -1.95)]
    handles = [art["boxes"][kind] for kind in LOOKS]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=8.5,
                  handlelength=1.4)  # fmt: skip
    return art


def _update(art: dict[str, Any], found: list[Row], tokens: int) -> str:
    now = found[: min(tokens, len(found))]
    places: dict[str, list[tuple[int, int]]] = {kind: [] for kind in LOOKS}
    for x in range(MOST):
        row = now[x] if x < len(now) else None
        for y, (kind, words) in enumerate(_cells(row)):
            art["cells"][y][x].set_text(words)
            if words:
                places[kind].append((x, 2 - y))
    for kind, block in art["boxes"].items():
        left, low = columns(places[kind], 2)
        block.set_boxes(left + 0.04, low + 0.1, 0.92, 0.8)
    art["now"].set_boxes(len(now) - 1, 0.02, 1.0, 2.96)
    alone, given = "".join(row.alone for row in now), "".join(row.given for row in now)
    lines = (
        f"each for itself:  {alone}",
        f"the parser shows:  {given}",
        f"waits:  {now[-1].waits or 'nothing'}",
    )
    for text, line in zip(art["said"], lines, strict=True):
        text.set_text(line)
    return _told(now, tokens, alone, given)


def _cells(row: Row | None) -> list[tuple[str, str]]:
    """(kind, words) of the three boxes of a column."""
    if row is None:
        return [(PLAIN, "")] * 3
    end = "" if row.data else "end"
    ours = (WRONG if BROKEN in row.given else SHOWN, _spaced(row.given))
    if not row.given:
        ours = (WAITS, "\u2026" if row.waits else "stop" if row.stopped_by else "")
    alone = (WRONG if BROKEN in row.alone else SHOWN, _spaced(row.alone))
    return [(PLAIN, end or _escaped(row.data)), alone, ours]


def _spaced(text: str) -> str:
    return text.replace(" ", "\u00b7")


def _escaped(data: bytes) -> str:
    """Bytes as Python writes them, a space as a dot in the middle."""
    return _spaced(repr(data)[2:-1])


def _told(now: list[Row], tokens: int, alone: str, given: str) -> str:
    row, place = now[-1], "The output ends"
    if tokens > len(now):
        place = f"No token {tokens}, the output has ended"
    elif row.data:
        place = f"Token {tokens} brings {_escaped(row.data)}"
    shows = f"the parser shows {row.given!r}" if row.given else "the parser shows nothing"
    waits = f" and {row.waits} waits" if row.waits else ""
    stop = (
        f" Stop string {row.stopped_by!r} is complete, none of it shown." if row.stopped_by else ""
    )
    broken = alone.count(BROKEN)
    return (
        f"{place}: {shows}{waits}.{stop} So far: {given!r}; each token decoded for itself: "
        f"{alone!r}, with {many(broken, 'broken character')}."
    )
