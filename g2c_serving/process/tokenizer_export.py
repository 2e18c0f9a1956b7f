"""Our tokenizer as a `tokenizer.json` of Hugging Face: the same ids for the same text.

There a token is found by its string, so the 256 bytes are written as 256 printable characters, as
GPT-2 does, and the reserved tokens stand in the vocabulary by their names, as special tokens. What
is lost is the provenance of section 5: in that library a text that spells `<|user|>` makes the
reserved id, whoever wrote it (`split_special_tokens=True` turns that off for a whole text).
"""

from __future__ import annotations

from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from g2c_serving.process.bpe_spec import byte_of_character
from g2c_serving.process.tokenizer import Tokenizer

PAD = "<|pad|>"


def to_hugging_face(tokenizer: Tokenizer) -> tokenizers.Tokenizer:
    """ValueError where two tokens have the same bytes: that library cannot tell them apart."""
    if type(tokenizer) is not Tokenizer:  # one that was read from such a file has it there
        raise ValueError(
            f"the tokenizer is a {type(tokenizer).__name__}, not our own: export without it "
            "(--no-tokenizer), and copy the tokenizer files of the folder that it came from"
        )
    characters = list(byte_of_character())
    names = [
        "".join(characters[b] for b in tokenizer.token_bytes(i))
        for i in range(tokenizer.vocab_size)
    ]
    for name, token_id in tokenizer.reserved.items():
        names[token_id] = name
    _check_distinct(tokenizer, names)
    merges = [(names[a], names[b]) for a, b, _ in tokenizer.merges]
    vocab = {name: i for i, name in enumerate(names)}
    theirs = tokenizers.Tokenizer(models.BPE(vocab=vocab, merges=merges))
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    theirs.decoder = decoders.ByteLevel()
    theirs.add_special_tokens(
        [tokenizers.AddedToken(name, normalized=False) for name in tokenizer.reserved]
    )
    return theirs


def tokenizer_config(tokenizer: Tokenizer, eos_id: int | None, max_seq_len: int) -> dict[str, Any]:
    """What transformers keeps beside it, in tokenizer_config.json: no start token, no template."""
    by_id = {token_id: name for name, token_id in tokenizer.reserved.items()}
    eos = by_id.get(eos_id) if eos_id is not None else None
    pad = PAD if PAD in tokenizer.reserved else eos
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_seq_len,
        "clean_up_tokenization_spaces": False,
        "eos_token": eos,
        "pad_token": pad,
        "additional_special_tokens": [n for n in tokenizer.reserved if n not in (eos, pad)],
    }


def _check_distinct(tokenizer: Tokenizer, names: list[str]) -> None:
    first: dict[str, int] = {}
    for i, name in enumerate(names):
        if (other := first.setdefault(name, i)) != i:
            raise ValueError(
                f"tokens {other} and {i} of the tokenizer are both {tokenizer.token_bytes(i)!r}: a "
                "tokenizer.json finds tokens by their text and cannot hold both. Export without "
                "the tokenizer (--no-tokenizer), and pass token ids"
            )
    if len({(a, b) for a, b, _ in tokenizer.merges}) < len(tokenizer.merges):
        raise ValueError("the tokenizer merges one pair twice: a tokenizer.json cannot hold that")
