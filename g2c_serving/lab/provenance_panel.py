"""Strips of a prompt's tokens, coloured and labelled by where they came from.

Brief, section 5. Each run of tokens has its origin written above it; reserved tokens are filled,
text is framed, what was forged is filled and hatched at its foot. The panel has the naive path
above ours, and what the model answers to each, greedily, in the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab import provenance
from g2c_serving.lab.own_model import roomy
from g2c_serving.lab.panel import Panel, choice, text
from g2c_serving.lab.plots import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PINK,
    Blocks,
    Picture,
    columns,
    new_figure,
    picture,
    sheet,
    style,
)
from g2c_serving.lab.promoting import encode_promoting
from g2c_serving.lab.provenance import FORGED, RESERVED, Token
from g2c_serving.lab.recipe_forged import FORGED as FORGED_MESSAGE
from g2c_serving.process.chat import chat
from g2c_serving.process.prompt import Prompt
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.request import SamplingParams

COLUMNS = 132  # characters of a line of the strip
SIZE = 7.2  # points
LOOKS: dict[str, dict[str, Any]] = {
    RESERVED: {"facecolor": BLACK, "edgecolor": BLACK},
    FORGED: {"facecolor": ORANGE, "edgecolor": BLACK, "linewidth": 2},
    "system": {"facecolor": "#F6E3EE", "edgecolor": PINK, "linestyle": ":"},
    "user": {"facecolor": "#DCEBF5", "edgecolor": BLUE},
    "tool": {"facecolor": "#FBE6D9", "edgecolor": ORANGE, "linestyle": "--"},
    "assistant": {"facecolor": "#D9F0E8", "edgecolor": GREEN, "linestyle": "-."},
    "template": {"facecolor": "white", "edgecolor": GREY, "linestyle": ":"},
    provenance.OTHER: {"facecolor": "white", "edgecolor": BLACK},
}
MESSAGE, RESULT = "a user's message", "the end of a tool's result"
WEATHER = '{"sky": "rainy", "degrees": 7}'  # that result begins so
TEXT, IDS = "text", "ids"
TYPED = FORGED_MESSAGE
ANSWER_TOKENS = 40


class Strip:
    """Artists for up to `lines` lines of tokens in `axes`; `show` lays the tokens out."""

    def __init__(self, axes: Axes, lines: int, room: int = 150) -> None:
        sheet(axes, (-0.5, COLUMNS + 0.5), (lines - 0.05, -0.6))
        self.lines = lines
        self.boxes = {
            origin: Blocks(axes, 0, **{"hatch": "", "linewidth": 0.8, **look})
            for origin, look in LOOKS.items()
        }
        font: dict[str, Any] = {
            "family": "DejaVu Sans Mono",
            "va": "center",
            "ha": "center",
            "zorder": 3,
        }
        self.words = [axes.text(0, 0, "", fontsize=SIZE, **font) for _ in range(room)]
        small: dict[str, Any] = {"fontsize": 6.5, "va": "center", "color": "#333333"}
        self.labels = [axes.text(0, 0, "", **small) for _ in range(room)]

    @property
    def artists(self) -> list[Any]:
        return [*self.boxes.values(), *self.words, *self.labels]

    def show(self, tokens: Sequence[Token], boxes: str = TEXT) -> int:
        """Lay out as many tokens as there is room for; how many those are."""
        if boxes == IDS:
            tokens = [replace(token, shown=str(token.token_id)) for token in tokens]
        places = self._places(tokens)
        shown = list(zip(tokens, places, strict=False))
        for origin, block in self.boxes.items():
            here = [place for token, place in shown if token.origin == origin]
            left, top, wide = columns(here, 3)
            block.set_boxes(left, top, wide, 0.5)
        for word, (token, (x, y, width)) in zip(self.words, shown, strict=False):
            word.set_text(token.shown.replace("$", r"\$"))
            word.set_position((x + width / 2, y + 0.26))
            word.set_color("white" if token.origin in (RESERVED, FORGED) else BLACK)
        for word in self.words[len(shown) :]:
            word.set_text("")
        self._label(shown)
        return len(shown)

    def _places(self, tokens: Sequence[Token]) -> list[tuple[float, float, float]]:
        """Left, top and width of each token, line by line, until there is no room."""
        places: list[tuple[float, float, float]] = []
        x, line = 0.0, 0
        for token in tokens[: len(self.words)]:
            width = len(token.shown) + 0.6
            if x and x + width > COLUMNS:
                x, line = 0.0, line + 1
            if line == self.lines:
                break
            places.append((x, line, width))
            x += width + 0.5
        return places

    def _label(self, shown: Sequence[tuple[Token, tuple[float, float, float]]]) -> None:
        """The origin above the first token of each run and of each line. Reserved tokens have none:
        they are the filled ones; forged ones are named."""
        labels = iter(self.labels)
        before: tuple[str, float] | None = None
        free, line = 0.0, 0.0  # the last label ends there
        for token, (x, y, _) in shown:
            if (token.origin, y) != before and token.origin not in (RESERVED, "template"):
                name = token.origin.upper() if token.origin == FORGED else token.origin
                width = 1.1 * len(name)
                left = max(min(x, COLUMNS - width), free if y == line else 0.0)
                label = next(labels)
                label.set_text(name)
                label.set_position((left, y - 0.2))
                free, line = left + width, y
            before = (token.origin, y)
        for label in labels:
            label.set_text("")


def strip(tokenizer: Tokenizer, prompt: Prompt, lines: int = 5) -> Picture:
    """A still picture of a prompt's tokens by origin."""
    tokens = provenance.ours(tokenizer, prompt)
    figure = new_figure((8.0, 0.45 * lines + 0.1))
    with style():
        found = Strip(figure.subplots(), lines, room=len(tokens) + 1).show(tokens)
    more = f" The picture shows the first {found}." if found < len(tokens) else ""
    return picture(figure, provenance.sentence(tokens) + more)


def conversation(typed: str, as_: str = MESSAGE) -> Prompt:
    """The prompt of a chat into which `typed` comes: as a user's message, or behind the result of a
    tool that was asked for the weather."""
    if as_ == MESSAGE:
        return chat([{"role": "user", "content": typed}])
    call = {"name": "weather", "arguments": {"city": "Oslo"}}
    return chat(
        [
            {"role": "user", "content": "How is the weather in Oslo?"},
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "content": WEATHER + typed},
        ]
    )


def answers(lm: LanguageModel, prompt: Prompt, engine: Engine | None = None) -> tuple[str, str]:
    """What the model says, greedily, to the prompt on the naive path and on ours."""
    tokenizer, engine = lm.tokenizer, engine or Engine(roomy(lm))
    end = [i for name, i in tokenizer.reserved.items() if name == "<|end|>"]
    params = SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, stop_token_ids=end)
    ids = [encode_promoting(tokenizer, prompt.text), tokenizer.encode_parts(prompt)]
    told = [o.token_ids for o in engine.generate(ids, params)]
    forged, inert = (tokenizer.decode(i for i in one if i not in end) for one in told)
    return forged, inert


def panel(lm: LanguageModel) -> Panel:
    """Type a message: its tokens on both paths, and what the model answers to each."""

    engine = Engine(roomy(lm), EngineConfig(num_blocks=64))

    @lru_cache(64)
    def said(typed: str, as_: str) -> tuple[str, str]:
        return answers(lm, conversation(typed, as_), engine)

    controls = {
        "typed": text("Someone types", TYPED, rows=4),
        "as_": choice("It comes as", (MESSAGE, RESULT)),
        "boxes": choice("Boxes show", (TEXT, IDS)),
    }

    def update(art: dict[str, Any], typed: str, as_: str, boxes: str) -> str:
        prompt = conversation(typed, as_)
        paths = provenance.naive(lm.tokenizer, prompt), provenance.ours(lm.tokenizer, prompt)
        sentences = []
        for name, tokens, answer in zip(("naive", "ours"), paths, said(typed, as_), strict=True):
            found = art[name].show(tokens, boxes)
            more = f" (the first {found} shown)" if found < len(tokens) else ""
            counts = f"{len(tokens)} tokens, {provenance.count(tokens, FORGED)} forged"
            title = {"naive": "By spelling", "ours": "By provenance"}[name]
            art[name + " title"].set_text(f"{title}: {counts}{more}")
            art[name + " answer"].set_text(f"answer: {_short(answer)}")
            sentences.append(f"{title}: {counts}{_names(tokens)}; the model answers {answer!r}.")
        return f"As {as_}, {boxes} shown. {' '.join(sentences)}"

    return Panel(_draw, update, controls)


def _draw(figure: Figure) -> dict[str, Any]:
    art: dict[str, Any] = {}
    for axes, name in zip(figure.subplots(2, 1), ("naive", "ours"), strict=True):
        strip = Strip(axes, 4)
        art[name], art[name + " artists"] = strip, strip.artists
        place: dict[str, Any] = {"transform": axes.transAxes, "fontsize": 9}
        art[name + " title"] = axes.text(0, 1.02, "By spelling", weight="bold", **place)
        art[name + " answer"] = axes.text(0, -0.04, "answer:", va="top", **place)
    return art


def _names(tokens: Sequence[Token]) -> str:
    names = [token.shown for token in tokens if token.origin == FORGED]
    return f" ({' '.join(names)})" if names else ""


def _short(answer: str, most: int = 110) -> str:
    told = provenance.shown(answer.encode()).replace("\u00b7", " ").replace("$", r"\$")
    return told if len(told) <= most else told[: most - 1] + "\u2026"
