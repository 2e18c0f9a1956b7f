"""Where each token of a prompt came from, on our path and on the one that goes by spelling.

On our path the parts say it. On the naive path the prompt was one string before it was encoded, so
we look up afterwards what the encoder could not know: which character was whose. A reserved token
over characters of a text is forged. Brief, section 5. The pictures are in provenance_panel.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from g2c_serving.lab.promoting import promote
from g2c_serving.lab.table import Table
from g2c_serving.process.prompt import Prompt, Reserved
from g2c_serving.process.tokenizer import Tokenizer

RESERVED, FORGED = "reserved", "forged"
OTHER = "text"  # of no named origin
ORIGINS = (RESERVED, FORGED, "system", "user", "tool", "assistant", "template", OTHER)
LAST_LETTER = 0x24F  # of the letters that every font of ours has


@dataclass(frozen=True)
class Token:
    """One token: its id, what to show for it, and where it came from (one of ORIGINS)."""

    token_id: int
    shown: str
    origin: str


def ours(tokenizer: Tokenizer, prompt: Prompt) -> list[Token]:
    """The tokens of a prompt, each with the origin of the part that it came from."""
    encoded = tokenizer.encode_with_origin(prompt)
    tokens = []
    for span in encoded.spans:
        origin = _origin(prompt[span.part_index])
        for token_id in encoded.token_ids[span.start : span.end]:
            tokens.append(Token(token_id, shown(tokenizer.token_bytes(token_id)), origin))
    return tokens


def naive(tokenizer: Tokenizer, prompt: Prompt) -> list[Token]:
    """The tokens of the prompt's text on the promoting path. A token of ordinary text has the
    origin of its first byte."""
    origins, starts = _bytes_of(prompt)
    encoded = tokenizer.encode_with_origin(promote(tokenizer, prompt.text))
    tokens, at = [], 0
    for span in encoded.spans:
        for token_id in encoded.token_ids[span.start : span.end]:
            data = tokenizer.token_bytes(token_id)
            origin = origins[at]
            if span.is_reserved:
                origin = RESERVED if at in starts else FORGED
            tokens.append(Token(token_id, shown(data), origin))
            at += len(data)
    return tokens


def _origin(part: object) -> str:
    if isinstance(part, Reserved):
        return RESERVED
    origin = getattr(part, "origin", "")
    return origin if origin in ORIGINS[2:] else OTHER


def _bytes_of(prompt: Prompt) -> tuple[list[str], set[int]]:
    """Of each byte of the prompt's text its origin, and where a genuine reserved token begins."""
    origins: list[str] = []
    starts = set()
    for part in prompt:
        if isinstance(part, Reserved):
            starts.add(len(origins))
        spelled = part.name if isinstance(part, Reserved) else part.text
        origins += [_origin(part)] * len(spelled.encode("utf-8"))
    return origins, starts


def shown(data: bytes) -> str:
    """A token's bytes for a picture: spaces and line breaks visible, a piece of a character as its
    bytes in hexadecimal, a character that fonts may lack by its number."""
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        return data.hex(" ").upper()
    visible = {" ": "\u00b7", "\n": "\u21b5"}
    return "".join(
        visible.get(c, c if c.isprintable() and ord(c) <= LAST_LETTER else f"U+{ord(c):04X}")
        for c in text
    )


def count(tokens: Sequence[Token], origin: str) -> int:
    return sum(token.origin == origin for token in tokens)


def runs(tokens: Sequence[Token]) -> list[tuple[str, list[Token]]]:
    """Neighbours of one origin together; reserved tokens each alone."""
    found: list[tuple[str, list[Token]]] = []
    for token in tokens:
        alone = token.origin in (RESERVED, FORGED)
        if found and found[-1][0] == token.origin and not alone:
            found[-1][1].append(token)
        else:
            found.append((token.origin, [token]))
    return found


def table(tokens: Sequence[Token]) -> Table:
    """The strip as text: each run of tokens, where it came from, its ids."""
    rows = [
        ("".join(t.shown for t in run), origin, " ".join(str(t.token_id) for t in run))
        for origin, run in runs(tokens)
    ]
    return Table(("tokens", "from", "ids"), rows)


def sentence(tokens: Sequence[Token]) -> str:
    """How many tokens came from where."""
    counts = ((origin, count(tokens, origin)) for origin in ORIGINS)
    told = ", ".join(f"{number} {origin}" for origin, number in counts if number)
    return f"{len(tokens)} tokens: {told}."
