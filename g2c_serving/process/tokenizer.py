"""The byte-level BPE tokenizer: text to ids, and prompts of typed parts to ids.

Ids 0 to 255 are the bytes, then come the reserved tokens, then the merges in the order in which
they were learned. Text becomes ids by applying the merge with the lowest rank first, leftmost
first, over its UTF-8 bytes; there is no split by a pattern before it. The file format is that of
the parent course (`g2c.bpe`), so a tokenizer that you trained there loads here.

A reserved id has one source: a `Reserved` part that your program wrote (prompt.py). The Hugging
Face model underneath does not know the reserved tokens at all, so no text can make one, whatever a
user types. In the parent course the string `<|user|>` in any text becomes the reserved id.

No merge crosses a reserved id, so the texts between them are encoded each for itself, in parallel,
with the same ids as one after the other (Brief, section 5).

Left out: normalization, pattern splits, added tokens, streaming decode.
"""

from __future__ import annotations

import codecs
import heapq
import itertools
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import tokenizers

from g2c_serving.process import bpe_file
from g2c_serving.process.prompt import Encoded, Part, Prompt, Reserved, Span
from g2c_serving.process.utf8 import as_utf8

COURSE_SPECIAL_TOKENS = (
    "<|endoftext|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|tool_call|>",
    "<|tool_result|>",
    "<|end|>",
    "<|pad|>",
)
RESERVED_TOKENS = (*COURSE_SPECIAL_TOKENS, "<think>", "</think>")

Merge = tuple[int, int, int]  # (left id, right id, new id)
MOST_BYTES = 1 << 26  # of all tokens; a file of forty merges could ask for a TB


class Tokenizer:
    """Byte-level BPE over `merges`, with `special_tokens` as reserved ids from 256 on.

    `vocab_size` is 256 + reserved tokens + merges; `reserved` maps a name to its id. Brief,
    section 5 (special tokens by provenance). Raises ValueError when the merges do not fit.
    """

    def __init__(
        self, merges: Iterable[Sequence[int]] = (), special_tokens: Sequence[str] = RESERVED_TOKENS
    ) -> None:
        self.reserved = {name: 256 + i for i, name in enumerate(special_tokens)}
        if len(self.reserved) != len(special_tokens):
            raise ValueError(f"special_tokens has a name twice: {list(special_tokens)}")
        self._bytes = [bytes([b]) for b in range(256)]
        self._bytes += [name.encode("utf-8") for name in special_tokens]
        self.merges: list[Merge] = []
        self._num_bytes = sum(map(len, self._bytes))
        for merge in merges:
            self._add_merge(merge)
        self._ranks = {(a, b): new_id for a, b, new_id in self.merges}
        self._fast = self._build_fast()

    @property
    def vocab_size(self) -> int:
        return len(self._bytes)

    @cached_property
    def longest(self) -> int:
        """The bytes of the longest token, at least 1."""
        return max(1, *map(len, self._bytes))

    def encode(self, text: str) -> list[int]:
        """The ids of ordinary text; never a reserved id. ValueError for lone surrogates."""
        return self._encode_all([as_utf8("text", text)])[0]

    def encode_parts(self, parts: Prompt | Iterable[Part]) -> list[int]:
        """The ids of a prompt in parts. Each text part is encoded for itself, so no merge crosses
        the border between two parts.

        ValueError names the part whose reserved name this vocabulary lacks, or whose text has a
        lone surrogate; TypeError the one that is no part.
        """
        return list(itertools.chain.from_iterable(self._encode_each(_as_prompt(parts))))

    def encode_with_origin(self, parts: Prompt | Iterable[Part]) -> Encoded:
        """The same ids, and for each part the span of those that came from it."""
        prompt = _as_prompt(parts)
        token_ids: list[int] = []
        spans = []
        for index, ids in enumerate(self._encode_each(prompt)):
            start = len(token_ids)
            token_ids += ids
            is_reserved = isinstance(prompt[index], Reserved)
            spans.append(Span(start, len(token_ids), index, is_reserved))
        return Encoded(token_ids, spans)

    def reserved_id(self, name: str) -> int:
        if name not in self.reserved:
            raise ValueError(f"reserved token {name!r} is not in {list(self.reserved)}")
        return self.reserved[name]

    def decode(self, ids: Iterable[int]) -> str:
        """The text of `ids`. A reserved id gives its literal name; bytes that are not UTF-8 give
        the replacement character (join `token_bytes` for the exact bytes)."""
        return b"".join(self.token_bytes(i) for i in ids).decode("utf-8", errors="replace")

    def visible_text(self, ids: Iterable[int], final: bool = True) -> str:
        """What a user may see of `ids`: reserved tokens left out. Unless `final`, the bytes of a
        character that is not whole yet are held back."""
        reserved = set(self.reserved.values())
        data = b"".join(self.token_bytes(i) for i in ids if i not in reserved)
        return codecs.getincrementaldecoder("utf-8")(errors="replace").decode(data, final)

    def token_bytes(self, token_id: int) -> bytes:
        """The exact bytes of one id. ValueError outside 0 to vocab_size - 1."""
        if not 0 <= token_id < self.vocab_size:
            raise ValueError(f"token id {token_id} is outside 0 to {self.vocab_size - 1}")
        return self._bytes[token_id]

    @classmethod
    def load(cls, path: str | Path, vocab_size: int | None = None) -> Tokenizer:
        """Read a `g2c.bpe` file (version 1 or 2). `vocab_size` keeps only the first ids, for a
        model that was trained on a part of the vocabulary.

        FileNotFoundError or ValueError name the file and the remedy.
        """
        path = Path(path)
        special_tokens, merges = bpe_file.read(path)
        if vocab_size is not None:
            merges = bpe_file.cut(merges, vocab_size, 256 + len(special_tokens), path)
        try:
            return cls(merges, special_tokens)
        except (TypeError, ValueError) as err:
            raise ValueError(f"{path} is damaged: {err}. {bpe_file.remedy(path)}") from err

    def save(self, path: str | Path) -> None:
        """Write the file that `load` reads; folders are made where they lack."""
        bpe_file.write(Path(path), list(self.reserved), self.merges)

    def _encode_each(self, prompt: Prompt) -> list[list[int]]:
        """The ids of each part. The texts go to all cores at once, the interpreter lock released
        (TOKENIZERS_PARALLELISM=false: to one)."""
        texts = []
        for index, part in enumerate(prompt):
            try:
                if isinstance(part, Reserved):
                    self.reserved_id(part.name)
                else:
                    texts.append(as_utf8("text", part.text))
            except ValueError as err:
                raise ValueError(f"part {index}: {err}") from None
        alone = {name: [token_id] for name, token_id in self.reserved.items()}
        encoded = iter(self._encode_all(texts))
        return [alone[p.name] if isinstance(p, Reserved) else next(encoded) for p in prompt]

    def _encode_all(self, texts: list[bytes]) -> list[list[int]]:
        if self._fast is None:
            return [merge_bytes(data, self._ranks) for data in texts]
        latin = [data.decode("latin-1") for data in texts]
        return [e.ids for e in self._fast.encode_batch_fast(latin, add_special_tokens=False)]

    def _add_merge(self, merge: Sequence[int]) -> None:
        if len(merge) != 3 or not all(isinstance(i, int) for i in merge):
            raise ValueError(f"merge {list(merge)!r} is not [left id, right id, new id]")
        left, right, new_id = merge
        if new_id != self.vocab_size:
            raise ValueError(f"merge {list(merge)} should make the next id, {self.vocab_size}")
        for part in (left, right):
            if not 0 <= part < new_id or 256 <= part < 256 + len(self.reserved):
                raise ValueError(f"merge {list(merge)} uses id {part}: reserved or not yet made")
        self._num_bytes += len(self._bytes[left]) + len(self._bytes[right])
        if self._num_bytes > MOST_BYTES:
            raise ValueError(f"merge {list(merge)} makes more than {MOST_BYTES:,} bytes of tokens")
        self.merges.append((left, right, new_id))
        self._bytes.append(self._bytes[left] + self._bytes[right])

    def _build_fast(self) -> tokenizers.Tokenizer | None:
        """The Hugging Face model over bytes written as Latin-1 characters. It finds a token by its
        string, so it cannot hold two tokens of the same bytes: None then, and we merge here."""
        ordinary = [i for i in range(self.vocab_size) if not 256 <= i < 256 + len(self.reserved)]
        vocab = {self._bytes[i].decode("latin-1"): i for i in ordinary}
        if len(vocab) != len(ordinary) or len(self._ranks) != len(self.merges):
            return None
        names = {i: name for name, i in vocab.items()}
        pairs = [(names[a], names[b]) for a, b, _ in self.merges]
        return tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=pairs))


def merge_bytes(data: bytes, ranks: dict[tuple[int, int], int]) -> list[int]:
    """Merge `data` lowest rank first, leftmost first, with a heap over a linked list of ids.
    `ranks` maps a pair of ids to the new id, which is also its rank."""
    ids = list(data)
    after = list(range(1, len(ids) + 1))
    before = list(range(-1, len(ids) - 1))
    heap = [
        (ranks[pair], i, pair)
        for i, pair in enumerate(zip(ids, ids[1:], strict=False))
        if pair in ranks
    ]
    heapq.heapify(heap)
    while heap:
        new_id, i, pair = heapq.heappop(heap)
        j = after[i]
        if j >= len(ids) or (ids[i], ids[j]) != pair:
            continue  # one of the two was merged away since
        ids[i], ids[j], after[i] = new_id, -1, after[j]
        if after[i] < len(ids):
            before[after[i]] = i
        for k in (before[i], i):
            if k >= 0 and after[k] < len(ids) and (ids[k], ids[after[k]]) in ranks:
                pair = (ids[k], ids[after[k]])
                heapq.heappush(heap, (ranks[pair], k, pair))
    return [i for i in ids if i >= 0]


def _as_prompt(parts: Prompt | Iterable[Part]) -> Prompt:
    if isinstance(parts, str):
        raise TypeError("parts is one str: use encode(text), or pass a list [text]")
    return Prompt.of(parts)
