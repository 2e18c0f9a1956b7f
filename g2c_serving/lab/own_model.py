"""Pages are made for `tiny`: what they do with a model of your own that has less than a section
needs, each said in a sentence.

`tiny` sees 512 tokens and has reserved tokens for thoughts; the parent course's models see 128 to
512 and have none. Where a section measures time, memory or counts, positions that the model lacks
are made up; where it shows a text, the text is cut to what the model sees.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence

import torch

from g2c_serving.forward.draft_model import NEVER
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.process.tokenizer import Tokenizer

THOUGHTS = "<think>", "</think>"
LONG = 512  # tokens that `tiny` sees

_longer: weakref.WeakKeyDictionary[LanguageModel, LanguageModel] = weakref.WeakKeyDictionary()


def roomy(lm: LanguageModel, tokens: int = LONG) -> LanguageModel:
    """`lm`; where its context limit is below `tokens`, the same weights with its positions again
    from the first one on. That says so: times, blocks and counts are those of a longer context,
    what it writes there means nothing."""
    limit = lm.config.max_seq_len
    if limit >= tokens:
        return lm
    print(
        f"This needs a context of {tokens} tokens, {lm.name} has {limit}: its positions are "
        "repeated from there on. Times and counts hold, the text beyond means nothing."
    )
    known = _longer.get(lm)
    if known is None or known.config.max_seq_len < tokens:
        known = _longer[lm] = _repeated(lm, tokens)
    return known


def _repeated(lm: LanguageModel, tokens: int) -> LanguageModel:
    weights = dict(lm.weights)
    if "pos_embed.weight" in weights:  # (max_seq_len, D); rotary positions have no end
        rows = weights["pos_embed.weight"]
        weights["pos_embed.weight"] = rows.repeat(-(-tokens // len(rows)), 1)[:tokens]
    config = dataclasses.replace(lm.config, max_seq_len=tokens)
    return dataclasses.replace(lm, config=config, weights=weights)


def share(lm: LanguageModel, tokens: int) -> int:
    """As much of the context of `lm` as `tokens` are of `tiny`'s: `tokens` and no more, at least
    one."""
    return min(tokens, max(1, tokens * lm.config.max_seq_len // LONG))


def weighed(lm: LanguageModel) -> str:
    """Its name, and what its weights take in memory."""
    return f"{lm.name}, {sum(t.nbytes for t in lm.weights.values()) / 1e6:.0f} MB"


def with_thoughts(lm: LanguageModel) -> LanguageModel:
    """`lm`; where its tokenizer has no `<think>` and `</think>`, with an id for each behind its
    last one. That says so. The model reads them as `<|assistant|>`, and never writes them."""
    names = [name for name in THOUGHTS if name not in lm.tokenizer.reserved]
    if not names or not isinstance(lm.tokenizer, Tokenizer):
        return lm
    print(
        f"{lm.name} has no {' and '.join(names)}: they are added behind its last token. It never "
        "writes them, so its answers show no thoughts."
    )
    tokenizer = _MoreReserved(lm.tokenizer, names)
    count, weights = len(names), dict(lm.weights)
    rows = weights["token_embed.weight"]  # (V, D)
    like = lm.tokenizer.reserved.get("<|assistant|>", 0)
    weights["token_embed.weight"] = torch.cat([rows, rows[like].expand(count, -1)])
    bias = weights.get("head_bias", rows.new_zeros(len(rows)))
    weights["head_bias"] = torch.cat([bias, bias.new_full((count,), NEVER)])
    config = dataclasses.replace(lm.config, vocab_size=lm.vocab_size + count)
    return dataclasses.replace(lm, config=config, weights=weights, tokenizer=tokenizer)


class _MoreReserved(Tokenizer):
    """A tokenizer with reserved tokens behind its last id."""

    def __init__(self, tokenizer: Tokenizer, names: Sequence[str]) -> None:
        super().__init__(tokenizer.merges, list(tokenizer.reserved))
        for name in names:
            self.reserved[name] = len(self._bytes)
            self._bytes.append(name.encode())
