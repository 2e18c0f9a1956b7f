"""UTF-8 that arrives in pieces: a character is given out when its last byte is there.

A byte-level tokenizer may cut a character anywhere (Brief, section 5: "the streaming parser buffers
incomplete characters until the next token completes them"). What can no longer become a character
is given out as U+FFFD, as Python's "replace" does it, and counted: which bytes, of which token.
"""

from __future__ import annotations

REPLACEMENT = "\ufffd"
BEFORE = -1  # stands for the token of bytes that were there before the first one


def as_utf8(name: str, text: str) -> bytes:
    """The bytes of a text. ValueError for a lone surrogate, by the `name` of what has it."""
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as err:
        raise ValueError(
            f"{name} has a lone surrogate at character {err.start}, which UTF-8 cannot hold; "
            'repair it first, for example text.encode("utf-8", "replace").decode()'
        ) from None


class Utf8Stream:
    """Bytes in, characters out. `held` are the bytes of a character that is not whole, at most 3.

    broken_bytes   bytes that were no UTF-8
    first_broken   index of the token with the first of them, None where there is none
    before         bytes to begin with, such as the half character at a prompt's end: if they become
                   whole, the character is given out, and if not, nothing of them is
    """

    def __init__(self, before: bytes = b"") -> None:
        self.held, self._owners = before, [BEFORE] * len(before)
        self.broken_bytes = 0
        self.first_broken: int | None = None

    def feed(self, data: bytes, index: int, final: bool = False) -> str:
        """The characters that are whole with `data`, the bytes of token `index`. With `final`
        nothing is held: a half character is broken."""
        owners = self._owners + [index] * len(data)  # the token of each byte
        data = self.held + data
        text, start = [], 0
        while True:
            try:
                text.append(data[start:].decode("utf-8"))
                start = len(data)
                break
            except UnicodeDecodeError as error:
                text.append(data[start : start + error.start].decode("utf-8"))
                start, end = start + error.start, start + error.end
                if error.reason == "unexpected end of data" and not final:
                    break
                text.append(self._broken(owners[start:end]))
                start = end
        self.held, self._owners = data[start:], owners[start:]
        return "".join(text)

    def _broken(self, owners: list[int]) -> str:
        ours = [index for index in owners if index != BEFORE]
        if ours and self.first_broken is None:
            self.first_broken = ours[0]
        self.broken_bytes += len(ours)
        return REPLACEMENT if ours else ""
