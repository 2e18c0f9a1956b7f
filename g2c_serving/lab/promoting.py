"""The hole: an encoder that turns the spelling of a reserved token into its id, in any text.

That is what every encode path of the parent course does, and what a chat template that is rendered
to one string needs. It cannot know who wrote the string. Brief, section 5.

Also two near misses: decoding and encoding again, which promotes what was inert, and the option
`encode_special_tokens` of Hugging Face's tokenizers, which leaves out the added tokens that are not
flagged special.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import tokenizers

from g2c_serving.process.prompt import Part, Reserved, Text
from g2c_serving.process.tokenizer import COURSE_SPECIAL_TOKENS, Tokenizer


def promote(tokenizer: Tokenizer, text: str) -> list[Part]:
    """The parts that a promoting encoder sees in `text`: each spelling of a reserved name becomes
    that token. Where one name begins like another the longer wins."""
    names = sorted(tokenizer.reserved, key=len, reverse=True)
    if not names:
        return [Text(text)]
    pieces = re.split(f"({'|'.join(map(re.escape, names))})", text)  # text, name, text, ..., text
    parts = [Reserved(p) if i % 2 else Text(p) for i, p in enumerate(pieces)]
    return [part for part in parts if part != Text("")]


def encode_promoting(tokenizer: Tokenizer, text: str) -> list[int]:
    """The ids as the parent course gives them: reserved ids wherever their names are spelled."""
    return tokenizer.encode_parts(promote(tokenizer, text))


def course_vocabulary(tokenizer: Tokenizer) -> Tokenizer:
    """The same merges behind the parent course's eight reserved names: such a vocabulary as a
    learner's own `tokenizer.json` of the course holds."""
    first, eight = 256 + len(tokenizer.reserved), 256 + len(COURSE_SPECIAL_TOKENS)
    shift = eight - min([new for *_, new in tokenizer.merges], default=first)
    merges = [[i + shift if i >= 256 else i for i in merge] for merge in tokenizer.merges]
    return Tokenizer(merges, COURSE_SPECIAL_TOKENS)


def reserved_in(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """The names of the reserved ids, in order."""
    names = {token_id: name for name, token_id in tokenizer.reserved.items()}
    return [names[i] for i in token_ids if i in names]


def again(tokenizer: Tokenizer, text: str) -> tuple[list[int], list[int]]:
    """The inert ids of `text`, and the promoting encoder's ids of what they decode to. The two
    differ where `text` spells a reserved name: decoded text does not say where it came from."""
    inert = tokenizer.encode(text)
    return inert, encode_promoting(tokenizer, tokenizer.decode(inert))


def added_token_ids(name: str, text: str, special: bool) -> list[int]:
    """The ids that a small Hugging Face tokenizer (bytes, and `name` as added token 256) gives to
    `text` with `encode_special_tokens=True`, its option against special tokens in text."""
    vocab = {bytes([b]).decode("latin-1"): b for b in range(256)}
    model = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[]))
    model.add_tokens([tokenizers.AddedToken(name, special=special, normalized=False)])
    model.encode_special_tokens = True
    return model.encode(text, add_special_tokens=False).ids
