"""For a model that came without a tokenizer: it serves prompts of ids, and its outputs have no
text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from g2c_serving.process.tokenizer import Tokenizer


class NoTokenizer(Tokenizer):
    """Of the model in `folder`. Each of its `vocab_size` ids has no bytes; text is refused with the
    remedy."""

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
