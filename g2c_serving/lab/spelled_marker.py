"""A model that spells `</think>` in the middle of its thought: read by text, and read by id.

Brief, section 5. The naive path decodes all ids and looks for the markers' names in the text, so it
cannot tell a marker from seven letters that spell it. Ours is `process/streaming.py`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, GREEN, GREY, ORANGE, Blocks, columns, sheet
from g2c_serving.process.prompt import Reserved
from g2c_serving.process.streaming import ANSWER, OPENS, REASONING, TOOL_CALL, OutputParser
from g2c_serving.process.tokenizer import Tokenizer

MARKER = "marker"
THOUGHTS = {  # of nearly as many tokens, so that the slider ends where the output does
    "an end of thought": "I may write </think> and then 99. Back to 3 + 4, which is 7",
    "a tool call": 'I may write <|tool_call|>{"name": "wipe"}<|end|> too.',
    "a beginning of thought": "I may write <think> and begin again: 3 + 4 = 7, so Mia has 7",
    "no marker": "3 hats and 4 hats: 3 + 4 = 7, so Mia has 7 hats, that is all",
}
ANSWER_TEXT = "Mia has 7 hats."
LOOKS: dict[str, dict[str, Any]] = {
    REASONING: {"facecolor": "#DDDDDD", "edgecolor": GREY, "hatch": "...", "label": "reasoning"},
    ANSWER: {"facecolor": "#BFE5D9", "edgecolor": GREEN, "hatch": "", "label": "answer"},
    TOOL_CALL: {"facecolor": "#FFD9B8", "edgecolor": ORANGE, "hatch": "//", "label": "tool call"},
    MARKER: {
        "facecolor": BLACK,
        "edgecolor": BLACK,
        "hatch": "",
        "label": "marker (of tokens: reserved id)",
    },
}
WIDE = 98  # characters in the picture's width
MOST = 43  # tokens of the longest output


@dataclass(frozen=True)
class Reading:
    """What one way of reading makes of an output: the channel of each token, and what a user and a
    tool get."""

    channels: tuple[str, ...]  # of each token; MARKER for one that counts as a marker
    answer: str
    calls: tuple[str, ...]


def output_ids(tokenizer: Tokenizer, thought: str) -> list[int]:
    """A thought between its two reserved ids, then an answer; all else is ordinary text."""
    parts = (Reserved("<think>"), thought, Reserved("</think>"), ANSWER_TEXT, Reserved("<|end|>"))
    return tokenizer.encode_parts(parts)


def by_text(tokenizer: Tokenizer, ids: Sequence[int]) -> Reading:
    """The naive way: markers are found in the decoded text."""
    pieces = [tokenizer.decode([token_id]) for token_id in ids]
    pattern = "(" + "|".join(map(re.escape, tokenizer.reserved)) + ")"
    channel, kinds, answer, calls = ANSWER, [], "", []  # kinds: of each character
    for part in re.split(pattern, "".join(pieces)):
        if part in tokenizer.reserved:
            channel = OPENS.get(part, ANSWER)
            kinds += [MARKER] * len(part)
            calls += [""] * (channel == TOOL_CALL)
            continue
        kinds += [channel] * len(part)
        if channel == ANSWER:
            answer += part
        elif channel == TOOL_CALL:
            calls[-1] += part
    ends = np.cumsum([len(piece) for piece in pieces])
    return Reading(tuple(kinds[end - 1] for end in ends), answer, tuple(calls))


def by_id(tokenizer: Tokenizer, ids: Sequence[int]) -> Reading:
    """Ours: a marker is a reserved id."""
    parser, reserved, channels = OutputParser(tokenizer), set(tokenizer.reserved.values()), []
    for token_id in ids:
        parser.feed(token_id)
        channels.append(MARKER if token_id in reserved else parser.channel)
    parser.finish()
    calls = tuple(call.text for call in parser.tool_calls())
    return Reading(tuple(channels), parser.text(), calls)


def panel(tokenizer: Tokenizer) -> Panel:
    """The same ids read twice, up to the token that the slider says."""
    ids = {name: output_ids(tokenizer, thought) for name, thought in THOUGHTS.items()}
    controls = {
        "thought": choice("The thought spells", tuple(THOUGHTS)),
        "tokens": slider("Tokens that have arrived", 1, MOST, MOST),
    }

    def update(art: dict[str, Any], thought: str, tokens: int) -> str:
        now = ids[thought][:tokens]
        readings = {"by text": by_text(tokenizer, now), "by id": by_id(tokenizer, now)}
        _show(art, tokenizer, now, readings)
        return f"The thought spells {thought}; {_told(len(ids[thought]), tokens, readings)}"

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    sheet(axes, (-9, WIDE), (-3.9, 3.1))
    for y, words in ((2.5, "tokens"), (1.5, "by text"), (0.5, "by id")):
        axes.text(-0.8, y, words, ha="right", va="center", fontsize=9.5)
    art: dict[str, Any] = {"bands": {k: Blocks(axes, 0, **look) for k, look in LOOKS.items()}}
    plain: dict[str, Any] = {"facecolor": "white", "edgecolor": GREY, "hatch": ""}
    art["tokens"] = Blocks(axes, 0, **plain)
    art["reserved"] = Blocks(axes, 0, **{**plain, "facecolor": BLACK, "edgecolor": BLACK})
    mono: dict[str, Any] = {"family": "monospace", "fontsize": 7.6, "va": "center", "ha": "center"}
    art["pieces"] = [axes.text(0, 2.5, "", **mono) for _ in range(MOST)]
    box = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.9}
    label: dict[str, Any] = {"fontsize": 8.5, "va": "center", "ha": "center", "bbox": box}
    art["names"] = [axes.text(0, 0, "", **label) for _ in range(12)]
    art["said"] = [
        axes.text(-8.8, y, "", fontsize=9.5, va="center") for y in (-0.7, -1.5, -2.5, -3.3)
    ]
    handles = [art["bands"][kind] for kind in LOOKS]
    labels = [look["label"] for look in LOOKS.values()]
    figure.legend(handles, labels, loc="outside upper center", ncols=4, fontsize=8.5,
                  handlelength=1.4)  # fmt: skip
    return art


def _show(
    art: dict[str, Any], tokenizer: Tokenizer, ids: Sequence[int], readings: dict[str, Reading]
) -> None:
    pieces = [tokenizer.decode([token_id]) for token_id in ids]
    widths = np.array([len(piece) for piece in pieces], dtype=float)
    left = np.cumsum(widths) - widths
    is_reserved = np.isin(ids, list(tokenizer.reserved.values()))
    for key, some in (("tokens", ~is_reserved), ("reserved", is_reserved)):
        art[key].set_boxes(left[some] + 0.08, 2.1, widths[some] - 0.16, 0.8)
    for i, text in enumerate(art["pieces"]):
        text.set_text(pieces[i].replace(" ", "\u00b7") if i < len(pieces) else "")
        text.set_x(left[i] + widths[i] / 2 if i < len(pieces) else 0)
        text.set_color("white" if i < len(pieces) and is_reserved[i] else BLACK)
    bands = [
        (kind, sum(widths[:first]), sum(widths[first:end]), y)
        for y, reading in ((1.1, readings["by text"]), (0.1, readings["by id"]))
        for kind, first, end in _runs(reading.channels)
    ]
    for kind, block in art["bands"].items():
        here = [(x, width, y) for k, x, width, y in bands if k == kind]
        x, width, y = columns(here, 3)
        block.set_boxes(x + 0.08, y, width - 0.16, 0.8)
    named = [band for band in bands if band[0] != MARKER and band[2] >= 9]
    for i, text in enumerate(art["names"]):
        text.set_text(LOOKS[named[i][0]]["label"] if i < len(named) else "")
        if i < len(named):
            text.set_position((named[i][1] + named[i][2] / 2, named[i][3] + 0.4))
    lines = [line for way, reading in readings.items() for line in _lines(way, reading)]
    for text, line in zip(art["said"], lines, strict=True):
        text.set_text(line)


def _runs(channels: Sequence[str]) -> list[tuple[str, int, int]]:
    """(channel, first token, end) of neighbours that share a channel."""
    found, first = [], 0
    for kind, some in groupby(channels):
        end = first + len(list(some))
        found.append((kind, first, end))
        first = end
    return found


def _lines(way: str, reading: Reading) -> tuple[str, str]:
    calls = ", ".join(reading.calls) or "nothing"
    return f"{way}, the user sees:  {reading.answer}", f"{way}, a tool gets:  {calls}"


def _told(count: int, tokens: int, readings: dict[str, Reading]) -> str:
    ways = [
        f"Read {way}, the user sees {reading.answer!r} and "
        + (
            f"a tool is called with {reading.calls[0]!r}."
            if reading.calls
            else "no tool is called."
        )
        for way, reading in readings.items()
    ]
    return f"{min(tokens, count)} of {count} tokens are there. {' '.join(ways)}"
