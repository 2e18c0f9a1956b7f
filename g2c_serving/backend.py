"""The engine behind the parent course's interface: one call, one completion.

Its Module 16 calls a model through a `Backend`, and the modules after it are written against that:
`complete(prompt, ...)` gives an `InferenceResult`. This has the same call and the same fields, so
they run on this engine, with its prefix cache: a prompt that goes on from an earlier one computes
only what is new.

One thing differs. In the course a text that spells `<|user|>` becomes the reserved token; here text
stays text (Brief, section 5), and what renders a conversation is `chat(...)`, which `complete`
takes as a prompt. Where a program renders it to text, `parse` says how a text becomes a prompt;
what that promotes, it promotes for whoever wrote the text.

Left out: the course's `load_artifact_backend` (use `load`) and its `benchmark`, which takes this.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from g2c_serving.checks import as_int
from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.intake import AnyPrompt, check_length, encode_prompt
from g2c_serving.process.prompt import Prompt
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.request import SamplingParams

END_OF_TURN = "<|end|>"


@dataclass(frozen=True)
class InferenceResult:
    """One completion, with the fields of the parent course.

    prompt, completion                as text; the completion as a user may see it
    prompt_tokens, completion_tokens  how many; the one that ended the text is counted
    latency_ms                        from the call to the whole answer
    metadata    model, finish_reason, message, seed (replays it), token_ids, num_cached_tokens,
                reasoning and tool_calls
    """

    prompt: str
    completion: str
    prompt_tokens: int
    completion_tokens: int
    latency_ms: float
    backend: str
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens by the latency; 0 where no time passed."""
        return 1e3 * self.completion_tokens / self.latency_ms if self.latency_ms > 0 else 0.0


class Backend:
    """`complete` over an engine of its own. Calls come one after the other, from one thread.

    lm      a loaded model: load("tiny"), or a folder, or a live model
    config  how much the engine may hold; as it is, with the prefix cache on
    parse   how a text becomes a prompt; None: as ordinary text, all of it
    opening whether what the tokenizer puts before a text, a <s> for example, is put before a text
            here too: transformers and vLLM do, and such a model was trained so
    """

    name = "g2c_serving"

    def __init__(
        self,
        lm: LanguageModel,
        config: EngineConfig | None = None,
        parse: Callable[[str], AnyPrompt] | None = None,
        opening: bool = True,
    ) -> None:
        if not isinstance(lm, LanguageModel):
            raise TypeError(f"lm is a {type(lm).__name__}: pass a loaded model, load({lm!r:.60})")
        self.lm, self._parse, self._opening = lm, parse, opening
        self.engine = Engine(lm, config or EngineConfig(enable_prefix_caching=True))

    def complete(
        self,
        prompt: AnyPrompt,
        *,
        max_new_tokens: int = 128,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
    ) -> InferenceResult:
        """Go on from `prompt` until the text or the assistant's turn ends, `max_new_tokens` are
        reached or the context limit is.

        prompt        a text, a `Prompt` such as chat(...), or token ids
        temperature   0 is greedy
        top_k, top_p  None is off
        seed          None draws a fresh one; metadata has it either way

        ValueError names the field and the remedy; RuntimeError where the engine had to give up.
        """
        params = SamplingParams(
            max_tokens=as_int("max_new_tokens", max_new_tokens, 1),
            temperature=temperature,
            top_k=0 if top_k is None else as_int("top_k", top_k, 1),
            top_p=1.0 if top_p is None else top_p,
            seed=seed,
            stop_token_ids=self._ends(),
        )
        start = time.perf_counter()
        (output,) = self.engine.generate([self._read(prompt)], params)
        latency_ms = 1e3 * (time.perf_counter() - start)
        if output.finish_reason == "error":
            raise RuntimeError(f"the completion ended with an error: {output.message}")
        about = ("finish_reason", "message", "seed", "token_ids", "num_cached_tokens", "reasoning",
                 "tool_calls")  # fmt: skip
        return InferenceResult(
            self._text(prompt, output.prompt_token_ids),
            output.text,
            len(output.prompt_token_ids),
            len(output.token_ids),
            latency_ms,
            self.name,
            {"model": self.lm.name} | {name: getattr(output, name) for name in about},
        )

    def _read(self, prompt: AnyPrompt) -> AnyPrompt:
        if not isinstance(prompt, str) or not prompt:
            return prompt
        check_length(self.lm.tokenizer, len(prompt), self.lm.config.max_seq_len)
        found = self._parse(prompt) if self._parse else prompt
        return opened(self.lm.tokenizer, found) if self._opening else found

    def _text(self, prompt: AnyPrompt, token_ids: Iterable[int]) -> str:
        if isinstance(prompt, str):
            return prompt
        return prompt.text if isinstance(prompt, Prompt) else self.lm.tokenizer.decode(token_ids)

    def _ends(self) -> tuple[int, ...]:
        """What ends an assistant's turn, beside the model's own end of text."""
        end = self.lm.tokenizer.reserved.get(END_OF_TURN)
        return () if end is None or end >= self.lm.vocab_size else (end,)


def opened(tokenizer: Tokenizer, prompt: AnyPrompt) -> AnyPrompt:
    """A prompt that was a text, behind what its tokenizer puts before a text; as it is where that
    is nothing, where it begins so already, and where it is ids. The text is encoded by itself, as
    the first: some tokenizers write a blank before that one alone."""
    opening = [tokenizer.reserved_id(part.name) for part in getattr(tokenizer, "opening", ())]
    if not opening or (not isinstance(prompt, str) and isinstance(next(iter(prompt), 0), int)):
        return prompt
    ids = encode_prompt(tokenizer, prompt)
    return ids if ids[: len(opening)] == opening else opening + ids
