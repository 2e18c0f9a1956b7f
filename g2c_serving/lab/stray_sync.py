"""Where a loop waits for the device: each call that asks for a number, and how often it waits.

Brief, section 6: `generate_cached` calls `.cpu()` on the logits and `.item()` on the token. Nothing
waits on a CPU; what is counted is what would wait on an accelerator, by the rules of
`sync_rules.py`. Unlike under the guard, code goes on after a wait, so it is followed: what was
copied to the host, and what is computed of it there, can be read without another wait.
"""

from __future__ import annotations

import linecache
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from g2c_serving.forbid_sync import Sync, find_line, forbid_sync
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.one_user import OneUserModel, generate_cached
from g2c_serving.lab.table import Table
from g2c_serving.sync_rules import RULES, Places

PROMPT = "Once upon a time"


@dataclass
class Waits:
    """The calls of a run of `tokens` tokens that ask for a number, and those that waited for it."""

    tokens: int = 0
    asked: Counter[Sync] = field(default_factory=Counter)
    waited: Counter[Sync] = field(default_factory=Counter)

    @property
    def per_token(self) -> float:
        return self.waited.total() / max(self.tokens, 1)

    def table(self) -> Table:
        """A row for each call, those that wait most first."""
        calls = sorted(self.asked, key=lambda s: (-self.waited[s], -self.asked[s], s.where))
        rows = [
            (
                f"{s.where}  {s.text}",
                s.what,
                self._often(self.asked[s]),
                self._often(self.waited[s]),
            )
            for s in calls
        ]
        return Table(("line", "call", "asks per token", "waits per token"), rows)

    def _often(self, count: int) -> str:
        return f"{count / max(self.tokens, 1):.3g}"


class CountSyncs(forbid_sync):
    """Counts waits instead of refusing them, in `waits`."""

    def __init__(self, phase: str = "run") -> None:
        super().__init__(phase)
        self.waits = Waits()
        self._nothing = Places("cpu")  # to which no tensor is on the host

    def found(self, sync: Sync) -> None:
        self.waits.asked[sync] += 1
        self.waits.waited[sync] += 1

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is not torch.Tensor.to and self._is_on_host(args, kwargs):
            self._note_free(func, args, kwargs)
            result = func(*args, **kwargs)
            return result if isinstance(result, torch.Size) else self._keep(result)
        before = self.waits.waited.total()
        result = super().__torch_function__(func, types, args, kwargs)
        if isinstance(result, torch.Tensor) and func in (torch.Tensor.cpu, torch.Tensor.to):
            if self.waits.waited.total() > before:  # it was copied to the host
                return self._keep(result.clone())
        return result

    def _is_on_host(self, args: tuple, kwargs: dict) -> bool:
        tensors = list(_tensors((*args, *kwargs.values())))
        return bool(tensors) and all(map(self.places.on_host, tensors))

    def _note_free(self, func: Any, args: tuple, kwargs: dict) -> None:
        """A call on the host asks for a number without a wait."""
        what = func in RULES and RULES[func](self._nothing, args, kwargs)
        if what:
            self.waits.asked[find_line(what)] += 1

    def _keep(self, result: Any) -> Any:
        for tensor in _tensors((result,)):
            self.places.host[id(tensor)] = tensor
        return result


def _tensors(values: Sequence[Any]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def count_waits(work: Callable[[], int]) -> Waits:
    """How often `work` waits for the device; it returns how many tokens it has made."""
    counter = CountSyncs()
    with counter:
        counter.waits.tokens = work()
    return counter.waits


# the loop of the parent course


def course_pick(logits: torch.Tensor) -> int:
    """A token from logits (V,), as the course draws it: on the host."""
    logits = logits.cpu()
    probs = torch.softmax(logits / 0.8, dim=-1)
    token = torch.multinomial(probs, num_samples=1)
    return int(token.item())


def device_pick(logits: torch.Tensor) -> int:
    """The same draw on the device: now it is the token that is waited for."""
    probs = torch.softmax(logits / 0.8, dim=-1)
    token = torch.multinomial(probs, num_samples=1)
    return int(token.item())


def course_waits(
    lm: LanguageModel, new_tokens: int = 24, pick: Callable[[torch.Tensor], int] = course_pick
) -> Waits:
    """The waits of `generate_cached` as it writes `new_tokens` tokens."""
    model, ids = OneUserModel(lm), lm.tokenizer.encode(PROMPT)
    return count_waits(lambda: len(generate_cached(model, ids, new_tokens, pick=pick)))


# a function to look through

HIDDEN = '''\
def pick(logits, recent, temperature):
    """A token for each row; the `recent` ones (R, k) of a row weigh half."""
    rows, vocab = logits.shape
    scores = logits.float() / temperature
    said = torch.zeros(rows, vocab, dtype=torch.bool, device=logits.device)
    said.scatter_(1, recent, True)
    scores = torch.where(said, scores - math.log(2), scores)
    best, ids = scores.topk(min(40, vocab))
    if len(best) != rows or best.dtype != torch.float32:
        raise ValueError(f"best is {tuple(best.shape)}, {best.dtype}")
    chance = best.softmax(-1)
    sure = chance[:, 0] > 0.95
    noise = torch.empty_like(chance).exponential_()
    choice = (chance / noise).argmax(-1)
    choice = choice.masked_fill(sure, 0)
    tokens = ids.gather(1, choice[:, None])[:, 0]
    drawn = tokens[~sure]
    share = len(drawn) / rows
    return tokens, share
'''


class Numbered:
    """Code with its line numbers."""

    def __init__(self, code: str) -> None:
        self.code = code

    def __repr__(self) -> str:
        lines = enumerate(self.code.splitlines(), start=1)
        return "\n".join(f"{number:>3}  {line}" for number, line in lines)

    def _repr_markdown_(self) -> str:
        return f"```python\n{self!r}\n```"


def waiting_lines(code: str, *args: Any) -> list[int]:
    """The lines of a function, given as code, that wait when it is called with `args`."""
    file = f"<function {hash(code)}>"
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    space: dict[str, Any] = {"torch": torch, "math": math, "__name__": "hidden"}
    exec(compile(code, file, "exec"), space)
    (function,) = (thing for name, thing in space.items() if callable(thing) and name[0] != "_")
    waits = count_waits(lambda: len([function(*args)]))
    return sorted({sync.line for sync in waits.waited if sync.file == file})


def hidden_line() -> int:
    """The line of `HIDDEN` that waits."""
    logits = torch.linspace(0, 1, 3 * 64).view(3, 64)
    (line,) = waiting_lines(HIDDEN, logits, torch.tensor([[1, 2]] * 3), 0.8)
    return line
