"""A hole in a mask: a reserved id inside a JSON string, where its name is as good as any text.

Brief, section 5. XGrammar knows a vocabulary as bytes. If a reserved id's bytes are its name, as in
a plain dump of the vocabulary, `<|user|>` may stand wherever those eight characters may: in any
string. Ours has no bytes for reserved ids (`sample/grammar_compiler.py`), so that none is allowed
anywhere. Along one tool call, byte by byte: how many of them each mask allows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from g2c_serving.forward.language_model import LanguageModel, eos_ids
from g2c_serving.lab import plots
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.sample.grammar import Grammar, as_mask
from g2c_serving.sample.grammar_compiler import GrammarCompiler

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"const": "note"},
        "arguments": {"type": "object", "properties": {"text": {"type": "string"}},
                      "required": ["text"]},
    },
    "required": ["name", "arguments"],
}  # fmt: skip
CALL = '{"name": "note", "arguments": {"text": "buy milk"}}'


@dataclass(frozen=True)
class Hole:
    """Reserved ids that are allowed before each byte of `CALL`, and at its end; the grammar's own
    end does not count."""

    names: tuple[str, ...]  # of the reserved ids
    spelled: np.ndarray  # (T + 1, names) bool: XGrammar, told the names as bytes
    ours: np.ndarray  # (T + 1, names) bool

    def most(self, allowed: np.ndarray) -> int:
        return int(allowed.sum(1).max())


def find(lm: LanguageModel) -> Hole:
    """Both masks along `CALL`."""
    reserved, size = lm.tokenizer.reserved, lm.vocab_size
    rows = _spelled(lm.tokenizer, size), _ours(lm)
    ids = [i for i in reserved.values() if i not in eos_ids(lm)]
    names = tuple(name for name, i in reserved.items() if i in ids)
    return Hole(names, *(row[:, ids] for row in rows))


def _spelled(tokenizer: Tokenizer, size: int) -> np.ndarray:
    """XGrammar's own mask (T + 1, V), its vocabulary with every name as text."""
    import xgrammar

    names = {i: name.encode() for name, i in tokenizer.reserved.items()}
    words = [names.get(i) or tokenizer.token_bytes(i) for i in range(size)]
    info = xgrammar.TokenizerInfo(words, xgrammar.VocabType.RAW, vocab_size=size, stop_token_ids=[])
    how: dict[str, Any] = {"any_whitespace": False, "separators": (", ", ": ")}
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_json_schema(SCHEMA, **how)
    matcher = xgrammar.GrammarMatcher(compiled, terminate_without_stop_token=True)
    bits = np.zeros((len(CALL) + 1, -(-size // 32)), dtype=np.int32)
    for place, byte in enumerate(CALL.encode()):
        matcher.fill_next_token_bitmask(bits, place)
        matcher.accept_string(bytes([byte]))
    return _as_array(bits, size)


def _ours(lm: LanguageModel) -> np.ndarray:
    """The engine's mask (T + 1, V)."""
    compiler = GrammarCompiler(lm.tokenizer, lm.vocab_size, eos_ids(lm))
    grammar = Grammar.json_schema(SCHEMA)
    state = compiler.state_of(grammar, compiler.submit(grammar).result())
    bits = np.zeros((len(CALL) + 1, -(-lm.vocab_size // 32)), dtype=np.int32)
    for place, byte in enumerate(CALL.encode()):
        state.fill(bits, place)
        state.advance(byte)  # ids below 256 are the bytes
    state.fill(bits, len(CALL))
    return _as_array(bits, lm.vocab_size)


def _as_array(bits: np.ndarray, size: int) -> np.ndarray:
    mask = as_mask(bits, size)
    assert mask is not None
    return mask.numpy()


def picture(hole: Hole) -> Any:
    """Bars over the call's characters."""
    figure = plots.new_figure()
    with plots.style():
        axes = figure.subplots()
        x = np.arange(len(CALL) + 1)
        bars = plots.Blocks(axes, 1, "names as bytes: XGrammar's own mask")
        bars.set_boxes(x - 0.4, 0, 0.8, hole.spelled.sum(1))
        axes.plot(x, hole.ours.sum(1), label="no bytes: ours", **plots.line(0))
        axes.set(xlim=(-0.8, len(CALL) + 0.8), ylim=(-0.5, len(hole.names) + 3.5))
        shown = [*CALL.replace(" ", "\u00b7"), "\nend"]
        axes.set_xticks(x, shown, family="monospace", fontsize=8.5)
        axes.set(ylabel="reserved ids allowed here", xlabel="before this character of the call")
        axes.legend(loc="upper left", ncols=2)
    inside = np.flatnonzero(hole.spelled.any(1))
    return plots.picture(
        figure,
        f"With the names as bytes XGrammar allows up to {hole.most(hole.spelled)} reserved ids, at "
        f"{len(inside)} of {len(CALL) + 1} places: those of the string 'buy milk'. Ours allows "
        f"{hole.most(hole.ours)} at every place.",
    )
