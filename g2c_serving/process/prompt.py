"""A prompt as typed parts: what your program marked as reserved, and everything else as text.

A reserved id has one source: a `Reserved` part that your program wrote. What a `Text` part spells
does not matter, so a user, a web page or a tool that spells `<|assistant|>` gets ordinary tokens.
That works at the level of tokens alone: once the parts are joined into one string, nothing tells
your marker from theirs. Brief, section 5 (special tokens, and who gets to type them).

DeepSeek's recipe does the same with a string and the ranges in it that are special tokens.
Not protected: a delimiter that is text itself, such as `</tool_result>` or a line `User:`. Text can
spell it, and the model then reads the same tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload


@dataclass(frozen=True)
class Reserved:
    """A part of a prompt that is one reserved token, by its name, for example `<|user|>`."""

    name: str

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"Reserved(name={self.name!r}): name must be a str such as '<|user|>'")


@dataclass(frozen=True)
class Text:
    """A part of a prompt that is ordinary text, whatever it spells. A plain str means the same.

    `origin` says whose text it is, for a reader: it changes no id and no comparison.
    """

    text: str
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise TypeError(
                f"Text(text={self.text!r}): text must be a str; bytes become one by "
                '.decode("utf-8", "replace")'
            )


Part = Reserved | Text | str


class Prompt(Sequence[Reserved | Text]):
    """An immutable sequence of parts; a str among them is a `Text`, and `+` joins.

    The engine takes it, and `Tokenizer.encode_parts`. TypeError names the part that is none.
    """

    __slots__ = ("_parts",)

    def __init__(self, parts: Iterable[Part] = ()) -> None:
        if isinstance(parts, Part):
            raise TypeError(
                f"parts is one {type(parts).__name__}, {parts!r}: pass a list [...], "
                "or use Prompt.of(...)"
            )
        self._parts = tuple(_as_part(i, part) for i, part in enumerate(parts))

    @classmethod
    def of(cls, value: Prompt | Part | Iterable[Part]) -> Prompt:
        """A prompt of whatever stands for one. A str is one text, all of it untrusted."""
        if isinstance(value, Prompt):
            return value
        return cls([value] if isinstance(value, Part) else value)

    @property
    def text(self) -> str:
        """What it spells. Where each piece came from is lost in it: show it, never encode it."""
        return "".join(p.name if isinstance(p, Reserved) else p.text for p in self._parts)

    @overload
    def __getitem__(self, index: int) -> Reserved | Text: ...
    @overload
    def __getitem__(self, index: slice) -> Prompt: ...
    def __getitem__(self, index: int | slice) -> Reserved | Text | Prompt:
        found = self._parts[index]
        return Prompt(found) if isinstance(found, tuple) else found

    def __len__(self) -> int:
        return len(self._parts)

    def __add__(self, other: Prompt | Part) -> Prompt:
        if not isinstance(other, Prompt | Part):
            return NotImplemented
        return Prompt((*self, *Prompt.of(other)))

    def __radd__(self, other: Part) -> Prompt:
        return Prompt.of(other) + self if isinstance(other, Part) else NotImplemented

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Prompt) and self._parts == other._parts

    def __hash__(self) -> int:
        return hash(self._parts)

    def __repr__(self) -> str:
        return f"Prompt([{', '.join(map(repr, self._parts))}])"


@dataclass(frozen=True)
class Span:
    """The tokens start to end - 1 of an encoded prompt, and the part that they came from."""

    start: int
    end: int
    part_index: int
    is_reserved: bool


@dataclass(frozen=True)
class Encoded:
    """The ids of a prompt, and one span for each of its parts, in order (an empty text: no ids)."""

    token_ids: list[int]
    spans: list[Span]


def _as_part(index: int, part: Any) -> Reserved | Text:
    if isinstance(part, Reserved | Text):
        return part
    if isinstance(part, str):
        return Text(part)
    raise TypeError(
        f"part {index} is {part!r}, neither Reserved, Text nor str: "
        "write Reserved(name) for a reserved token and Text(text) for all else"
    )
