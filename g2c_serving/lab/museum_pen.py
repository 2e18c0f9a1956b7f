"""Models for the museum's exhibits on texts: they write what a scene tells them to.

A scene says what the model would like to write, wish by wish: where a mask forbids the first wish's
token, the second's comes out. All other tokens are next to impossible at any temperature, so that
no exhibit on draws is mixed up with these. As with `museum_model.py` the context is read from the
pages, and text is bytes and reserved tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

import g2c_serving as g
from g2c_serving.lab.museum_model import MOST_STEPS, Copier, CopierLM

TOKENIZER = g.Tokenizer()  # bytes and reserved tokens
END_OF_TEXT, SYSTEM, USER, ASSISTANT, CALL, END, THINK, END_THINK = (
    TOKENIZER.reserved[name]
    for name in (
        "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>", "<|tool_call|>", "<|end|>",
        "<think>", "</think>",
    )
)  # fmt: skip
SPACING = 100.0  # of the logits of one wish and the next; exp(-100) is never drawn
Write = Callable[[list[int]], list[int]]  # from a context to the tokens wanted next, best first


class Pen(Copier):
    """Writes what `write` says of a context; `others` is the logit of all other tokens."""

    def __init__(self, config: Any, write: Write, others: float) -> None:
        super().__init__(config)
        self.write, self.others = write, others

    def logits(self, context: list[int]) -> torch.Tensor:
        """A row (V,)."""
        row = torch.full((TOKENIZER.vocab_size,), self.others)
        wanted = self.write(context)
        for place, token in reversed(list(enumerate(wanted))):
            row[token] = SPACING * (len(wanted) - place)
        return row


def model(write: Write, others: float = 0.0) -> CopierLM:
    """A language model that writes so, and knows its end of text."""
    lm = CopierLM(eos_id=END_OF_TEXT, name="pen", fingerprint="pen")
    lm.model = Pen(lm.config, write, others)
    return lm


def ids(*parts: str | int) -> list[int]:
    """Texts and reserved ids, one after the other."""
    return [i for p in parts for i in (TOKENIZER.encode(p) if isinstance(p, str) else [p])]


def wishes(scripts: Mapping[str, Sequence[Sequence[int]]]) -> Write:
    """After a prompt that ends in one of these texts: its scripts, the dearest first, token by
    token, whatever came out before; then the end of the text. A reserved id of the prompt is a
    zero byte there."""
    keys = {text.encode(): some for text, some in scripts.items()}

    def write(context: list[int]) -> list[int]:
        data = bytes(i if 0 <= i < 256 else 0 for i in context)
        key = next((key for key in keys if key in data), None)
        if key is None:
            return [END_OF_TEXT]
        place = len(context) - data.index(key) - len(key)
        return [script[place] if place < len(script) else END_OF_TEXT for script in keys[key]]

    return write


def engine(lm: CopierLM, **config: Any) -> g.Engine:
    return g.Engine(lm, _sizes(config))  # type: ignore[arg-type]


def overlapped(lm: CopierLM, **config: Any) -> g.AsyncEngine:
    """Close it, or a thread stays behind."""
    return g.AsyncEngine(lm, _sizes(config))  # type: ignore[arg-type]


def _sizes(config: dict[str, Any]) -> g.EngineConfig:
    return g.EngineConfig(**{"num_blocks": 64, "block_size": 8, **config})


def answer(lm: CopierLM, prompt: Any, params: g.SamplingParams) -> g.RequestOutput:
    """The whole answer to one prompt."""
    return answers(lm, prompt, params)[-1]


def answers(lm: CopierLM, prompt: Any, params: g.SamplingParams) -> list[g.RequestOutput]:
    """The answer as it comes, step by step. RuntimeError if it does not end."""
    e = engine(lm)
    e.add(prompt, params)
    seen: list[g.RequestOutput] = []
    for _ in range(MOST_STEPS):
        if not e.has_unfinished:
            return seen
        seen += e.step()
    raise RuntimeError(f"still waiting after {MOST_STEPS} steps")


def read(output: g.RequestOutput) -> dict[str, Any]:
    """What comes of an output, and who gets it."""
    return {
        "reasoning": output.reasoning or "nothing",
        "the tool gets": ", ".join(call.text for call in output.tool_calls) or "nothing",
        "Ann reads": output.text or "nothing",
    }
