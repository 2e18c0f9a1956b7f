"""Learns the tokenizer of exactly 1,024 tokens from the corpus and writes it in the g2c format.

Hugging Face's trainer counts the pairs; the split into words and single digits below is used while
learning only, so no merge spans two words or two digits. Emoji are taken out before: each stays
spread over four byte tokens, as rare characters do in any vocabulary, and streaming has to cope.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator

import tokenizers
from tokenizers import models, pre_tokenizers, trainers

from g2c_serving.process.bpe_spec import byte_of_character
from g2c_serving.process.tokenizer import RESERVED_TOKENS, Tokenizer
from g2c_serving.train.corpus import documents
from g2c_serving.train.words import EMOJI, FACTS, WORDS

VOCAB_SIZE = 1024


def learn_tokenizer(seed: int = 0, num_documents: int = 20_000) -> Tokenizer:
    """A tokenizer of 256 bytes, 10 reserved tokens and 758 merges. ValueError when the corpus is
    too small for so many merges."""
    learner = tokenizers.Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    digits = pre_tokenizers.Digits(individual_digits=True)
    learner.pre_tokenizer = pre_tokenizers.Sequence([digits, words])
    num_merges = VOCAB_SIZE - 256 - len(RESERVED_TOKENS)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=256 + num_merges, initial_alphabet=sorted(alphabet), show_progress=False
    )
    learner.train_from_iterator(_texts(seed, num_documents), trainer)
    pairs = json.loads(learner.to_str())["model"]["merges"]
    if len(pairs) != num_merges:
        raise ValueError(f"num_documents {num_documents} gives {len(pairs)} of {num_merges} merges")
    return Tokenizer(_number(pairs))


def _texts(seed: int, num_documents: int) -> Iterator[str]:
    """The text parts of the corpus without emoji, and the word lists again, facts most often."""
    remove = str.maketrans("", "", "".join(EMOJI))
    for parts in itertools.islice(documents(seed, drills=0), num_documents):
        yield from (part.translate(remove) for part in parts if isinstance(part, str))
    for slot, words in WORDS.items():
        yield " " + " ".join(words * (num_documents // (50 if slot in FACTS else 100)))


def _number(pairs: list[list[str]]) -> Iterator[tuple[int, int, int]]:
    """Pairs of token strings as merges of ids; the trainer writes a byte as one character."""
    ids = byte_of_character()
    for new_id, (left, right) in enumerate(pairs, start=256 + len(RESERVED_TOKENS)):
        yield ids[left], ids[right], new_id
        ids[left + right] = new_id
