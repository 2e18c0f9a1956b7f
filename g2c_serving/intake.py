"""From what a user passes to what can run: prompts become ids, and what never could is refused.

Every error names the field, the value and the remedy. Nothing here touches an engine's state, so a
refused request leaves no trace.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from numbers import Integral
from typing import Any

from g2c_serving.config import EngineConfig
from g2c_serving.forward.language_model import LanguageModel, eos_ids
from g2c_serving.process.hf_tokenizer import NoTokenizer
from g2c_serving.process.prompt import Part, Prompt, Text
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.request import EXPECTED, Request, SamplingParams
from g2c_serving.sample.rng import sample_seed
from g2c_serving.schedule.disk_tier import LIFETIMES

AnyPrompt = str | Prompt | Sequence[int] | Sequence[Part]  # a str is untrusted text all through

MOST_SALT = 4096  # characters: it is hashed with each block
SLACK = 4  # a tokenizer that normalizes may shorten a text


def encode_prompt(
    tokenizer: Tokenizer, prompt: AnyPrompt, most_tokens: int | None = None
) -> list[int]:
    """The ids of a prompt: text, ids (any sequence or one-dimensional array), or parts.

    most_tokens   a context that no longer text could fit: it is refused before it is encoded, which
                  takes seconds for megabytes
    """
    if isinstance(prompt, str):
        check_length(tokenizer, len(prompt), most_tokens)
        return tokenizer.encode(prompt)
    if isinstance(prompt, bytes | dict | set) or not hasattr(prompt, "__iter__"):
        raise TypeError(
            f"prompt is {prompt!r:.60}: pass a str, a sequence of token ids, or a sequence of "
            "Reserved, Text and str parts; generate() takes a list of prompts"
        )
    parts: list[Any] = prompt.tolist() if hasattr(prompt, "tolist") else list(prompt)
    if all(isinstance(p, Integral) and not isinstance(p, bool) for p in parts):
        return [int(p) for p in parts]
    texts = [p.text if isinstance(p, Text) else p for p in parts if isinstance(p, Text | str)]
    check_length(tokenizer, sum(map(len, texts)), most_tokens)
    return tokenizer.encode_parts(parts)


def check_length(tokenizer: Tokenizer, count: int, most_tokens: int | None) -> None:
    """ValueError for so many characters that no context of `most_tokens` could hold them."""
    if most_tokens is not None and count > most_tokens * tokenizer.longest * SLACK:
        raise ValueError(
            f"prompt has {count:,} characters; the context limit is {most_tokens:,} tokens, which "
            "cannot spell so many"
        )


def check_can_run(
    prompt_token_ids: list[int], params: SamplingParams, lm: LanguageModel, config: EngineConfig
) -> None:
    """ValueError for a prompt that could never run with this model and this engine."""
    if not isinstance(params, SamplingParams):
        raise TypeError(f"params is {params!r}: pass SamplingParams(...)")
    if params.stop and isinstance(lm.tokenizer, NoTokenizer):
        raise ValueError(
            f"stop={params.stop!r} can never match: {lm.name} has no tokenizer, so its outputs "
            "have no text; pass stop_token_ids"
        )
    num_tokens, limit = len(prompt_token_ids), lm.config.max_seq_len
    if num_tokens == 0:
        raise ValueError("prompt is empty: give it at least one token")
    for token_id in (*prompt_token_ids, *params.stop_token_ids):
        if not 0 <= token_id < lm.vocab_size:
            raise ValueError(
                f"token id {token_id} is outside the vocabulary, 0 to {lm.vocab_size - 1}"
            )
    if num_tokens >= limit:
        raise ValueError(
            f"prompt has {num_tokens} tokens; the context limit of {lm.name} is {limit}, "
            f"so a prompt may have at most {limit - 1}"
        )
    if num_tokens > config.num_blocks * config.block_size:
        raise ValueError(
            f"prompt of {num_tokens} tokens needs more than all {config.num_blocks} "
            f"blocks of {config.block_size}: raise EngineConfig.num_blocks"
        )


def check_cache_options(cache_salt: str, traffic: str) -> None:
    if not isinstance(cache_salt, str):
        raise TypeError(f"cache_salt={cache_salt!r:.60} must be a str, one for each tenant")
    if len(cache_salt) > MOST_SALT:
        raise ValueError(
            f"cache_salt has {len(cache_salt):,} characters; at most {MOST_SALT:,} serve: pass a "
            "hash of it"
        )
    if not isinstance(traffic, str) or traffic not in LIFETIMES:
        raise ValueError(f"traffic={traffic!r} must be one of {sorted(LIFETIMES)}")


def make_samples(
    prompt_token_ids: list[int],
    params: SamplingParams,
    lm: LanguageModel,
    request_id: int,
    sequence_id: int,
) -> list[Request]:
    """One request for each sample of the prompt. The first computes it, and the others, its
    `siblings`, fork off it then."""
    seed = secrets.randbits(64) if params.seed is None else params.seed
    stop_ids = set(params.stop_token_ids)
    if not params.ignore_eos:
        stop_ids |= set(eos_ids(lm))
    most_tokens = min(len(prompt_token_ids) + params.max_tokens, lm.config.max_seq_len)
    samples = [
        Request(
            request_id,
            sequence_id + i,
            i,
            prompt_token_ids,
            params,
            sample_seed(seed, i),
            state=EXPECTED,
            stop_ids=frozenset(stop_ids),
            most_tokens=most_tokens,
        )
        for i in range(params.n)
    ]
    samples[0].siblings = samples[1:]
    return samples


def one_each(
    params: SamplingParams | Sequence[SamplingParams] | None, count: int
) -> list[SamplingParams]:
    """One SamplingParams for each of `count` prompts."""
    if params is None or isinstance(params, SamplingParams):
        return [SamplingParams() if params is None else params] * count
    if not isinstance(params, list | tuple):
        raise TypeError(f"params is {params!r}: pass one SamplingParams(...), or a list of them")
    if len(params) != count:
        raise ValueError(f"params has {len(params)} entries for {count} prompts: one each, or one")
    return list(params)
