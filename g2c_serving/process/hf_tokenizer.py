"""A tokenizer of a Hugging Face folder, with the methods and the guarantees of ours.

Two families are read: byte-level BPE (GPT-2, Llama 3, Qwen) and SentencePiece BPE with byte
fallback (Llama 2, Mistral). The library underneath splits and merges as the file says. Its special
tokens do not stand in its model here: they are `reserved`, and come from `Reserved` parts alone,
whatever a text spells (Brief, section 5). In transformers, text that spells one makes it. Tokens
that were added later count as reserved too, unless they are blank.

Nothing is put before a text by itself. Models that were trained with a start token want `opening`
there; `Backend` does it, and encodes the text by itself first, since it may begin with a blank.

Left out: Unigram and WordPiece; chat templates.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import tokenizers

from g2c_serving.json_files import read_json
from g2c_serving.process.bpe_spec import BpeSpec, from_vocab_files
from g2c_serving.process.prompt import Prompt, Reserved
from g2c_serving.process.tokenizer import Tokenizer

REMEDY = "copy the tokenizer files of the model's folder again"


class HuggingFaceTokenizer(Tokenizer):
    """`spec` is the content of a tokenizer.json. `vocab_size` is the model's: ids from there on are
    left out, with their merges; ids that the tokenizer lacks have no bytes.

    opening    what the file puts before a text, for example (Reserved("<s>"),); we do not
    ValueError names what cannot be read.
    """

    def __init__(self, spec: Mapping[str, Any], vocab_size: int | None = None) -> None:
        self.spec = BpeSpec(spec, vocab_size)
        self.reserved = self.spec.reserved
        self.opening = tuple(Reserved(name) for name in self.spec.opening)
        self.merges = []  # they lie in the library's model, by their strings
        self._bytes = self.spec.token_bytes()
        self._first = tokenizers.Tokenizer.from_str(json.dumps(self.spec.ordinary()))

    @classmethod
    def load(cls, path: str | Path, vocab_size: int | None = None) -> HuggingFaceTokenizer:
        """Read tokenizer.json, or vocab.json with merges.txt, in the folder `path`.

        FileNotFoundError or ValueError name the file and the remedy.
        """
        folder = Path(path)
        whole = folder / "tokenizer.json"
        if not cls.holds(folder):
            raise FileNotFoundError(
                f"{folder} has no tokenizer.json, nor vocab.json with merges.txt: {REMEDY}"
            )
        try:
            if whole.is_file():
                return cls(read_json(whole), vocab_size)
            return cls(from_vocab_files(folder), vocab_size)
        except Exception as err:  # the library raises what it likes
            raise ValueError(f"{folder}: its tokenizer cannot be read ({err}); {REMEDY}") from err

    @staticmethod
    def holds(folder: str | Path) -> bool:
        """Whether a folder has a tokenizer that we may read."""
        there = {p.name for p in Path(folder).glob("*.*") if p.is_file()}
        return "tokenizer.json" in there or {"vocab.json", "merges.txt"} <= there

    @classmethod
    def of(cls, tokenizer: Any, vocab_size: int | None = None) -> HuggingFaceTokenizer:
        """Of a `tokenizers.Tokenizer`, or of a fast tokenizer of transformers."""
        fast = getattr(tokenizer, "backend_tokenizer", tokenizer)
        return cls(json.loads(fast.to_str()), vocab_size)

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`, without the blank that SentencePiece writes before a text."""
        text = super().decode(ids)
        return text[1:] if self.spec.strips_blank and text.startswith(" ") else text

    def save(self, path: str | Path) -> None:
        raise TypeError(
            f"{path}: not written; copy the files of the folder that this was read from"
        )

    def _encode_each(self, prompt: Prompt) -> list[list[int]]:
        """As ours; where the file writes a blank before a text's beginning alone, a text after
        another part has none."""
        encoded = super()._encode_each(prompt)
        if self.spec.blank_at_start:
            for i, part in enumerate(prompt):
                if i and not isinstance(part, Reserved):
                    encoded[i] = self._later.encode(part.text, add_special_tokens=False).ids
        return encoded

    def _encode_all(self, texts: Sequence[bytes]) -> list[list[int]]:
        if lost := self.spec.missing_bytes.intersection(b"".join(texts)):
            raise ValueError(
                f"text has the byte {min(lost):#04x}, which no token of this tokenizer spells"
            )
        strings = [data.decode("utf-8") for data in texts]
        return [e.ids for e in self._first.encode_batch_fast(strings, add_special_tokens=False)]

    @cached_property
    def _later(self) -> tokenizers.Tokenizer:
        return tokenizers.Tokenizer.from_str(json.dumps(self.spec.ordinary(at_start=False)))


class NoTokenizer(Tokenizer):
    """For the model in `folder`, which came without one: it serves prompts of ids, and its outputs
    have no text. Each of its `vocab_size` ids has no bytes; text is refused with the remedy."""

    def __init__(self, folder: str | Path, vocab_size: int) -> None:
        super().__init__((), ())
        self._folder, self._bytes = folder, [b""] * vocab_size

    def _encode_all(self, texts: Sequence[bytes]) -> list[list[int]]:
        if not texts:
            return []
        raise ValueError(
            f"{self._folder} has no tokenizer, so text cannot be encoded: pass a prompt of token "
            "ids, or copy the model's tokenizer.json (or vocab.json and merges.txt) into it and "
            "load it again"
        )
