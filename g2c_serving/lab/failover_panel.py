"""Three engines, twelve requests, and one engine that goes: the real thing, step by step.

Brief, "Fault tolerance and autoscaling". Engine A is asked to stop and has some steps of grace;
then it forwards its requests with their caches. Or it dies, and its requests are computed again
elsewhere from their tokens. `cluster/failover.py` does it; time is counted in steps. What comes out
is compared with the same requests in one engine that nothing happens to.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any

from matplotlib.figure import Figure

from g2c_serving.cluster.failover import Failover
from g2c_serving.config import EngineConfig
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.lab.panel import Panel, choice, slider
from g2c_serving.lab.plots import BLACK, GREY, Blocks, source_note
from g2c_serving.lab.words import many
from g2c_serving.request import SamplingParams

NAMES = ("A", "B", "C")
STOP, DIE = "is asked to stop", "dies"
EVENT, REQUESTS, LAST_STEP = 8, 12, 60  # the step at which A goes; requests; steps that are drawn
WAITS = "waits, or is computed again"
OPENINGS = (
    "Once upon a time", "Anna has a red ball.", "The little cat was", "One day Tom went to",
    "There was a big tree", "A bird sat on the", "Mia and Ben are", "In the garden there",
    "The old man said", "Sam lost his blue hat.", "Lily was very happy", "It rained all day",
)  # fmt: skip


@dataclass
class Story:
    """What became of a run: of each request, in each step, the engine that brought it a token, or
    None where it had none; what the fleet noted; how often tokens were computed again."""

    served: list[list[str | None]] = field(default_factory=lambda: [[] for _ in range(REQUESTS)])
    fleet: Failover | None = None
    tokens: dict[int, list[int]] = field(default_factory=dict)
    recomputed: int = 0

    def count(self, what: str) -> int:
        assert self.fleet is not None
        return sum(note.what == what for note in self.fleet.log)

    @property
    def moved_bytes(self) -> int:
        assert self.fleet is not None
        return sum(note.num_bytes for note in self.fleet.log)


def params(i: int) -> SamplingParams:
    """Request i's: answers of 14 to 36 tokens."""
    return SamplingParams(
        max_tokens=14 + 2 * (7 * i % REQUESTS), temperature=0.8, seed=i, ignore_eos=True
    )


def undisturbed(lm: LanguageModel) -> list[list[int]]:
    """The tokens of all requests in one engine."""
    engine = Engine(lm, EngineConfig(batch_invariant=True))
    outputs = engine.generate(list(OPENINGS), [params(i) for i in range(REQUESTS)])
    return [output.token_ids for output in outputs]


def play(lm: LanguageModel, how: str, grace: int, seats: int) -> Iterator[str | Story]:
    """Run it: lines of progress, and at last the story."""
    story = Story()
    engines = {
        name: Engine(lm, EngineConfig(batch_invariant=True, max_num_seqs=seats, num_blocks=128))
        for name in NAMES
    }
    fleet = story.fleet = Failover(engines, now=lambda: float(fleet.steps))
    ids = [fleet.add(OPENINGS[i], params(i)) for i in range(REQUESTS)]
    prompts = sum(len(lm.tokenizer.encode(text)) for text in OPENINGS)
    while fleet.has_unfinished:
        if fleet.steps == EVENT:
            _go(fleet, how, grace)
        unfinished = {i for i in ids if i in fleet.tickets}
        outputs = {output.request_id: output for output in fleet.step()}
        for i, output in outputs.items():
            grew = len(output.token_ids) > len(story.tokens.get(i, ()))
            story.tokens[i] = output.token_ids
            story.served[i].append(_last_engine(fleet, i) if grew else None)
        for i in unfinished - outputs.keys():
            story.served[i].append(None)
        if fleet.steps % 8 == 0:
            yield f"Step {fleet.steps}: {len(fleet.tickets)} of {REQUESTS} requests unfinished ..."
    story.recomputed = sum(e.stats.prefill_tokens for e in engines.values()) - prompts
    yield story


def _last_engine(fleet: Failover, request_id: int) -> str | None:
    """The engine that a request was last on: it moves before the engines take their step."""
    notes = (note.engine for note in reversed(fleet.log) if note.request_id == request_id)
    return next(notes)


def _go(fleet: Failover, how: str, grace: int) -> None:
    def gone() -> list:
        raise ConnectionError("engine A is gone")

    if how == STOP:
        fleet.stop("A", grace)
    else:
        fleet.engines["A"].step = gone  # type: ignore[method-assign]


def failover_panel(lm: LanguageModel) -> Panel:
    """Controls: how A goes, its grace, and how many requests an engine runs at a time."""
    expected: list[list[int]] = []

    def update(art: dict[str, Any], how: str, grace: int, seats: int) -> Generator[str, None, str]:
        if not expected:
            expected.extend(undisturbed(lm))
        for news in play(lm, how, grace, seats):
            if isinstance(news, Story):
                story = news
            else:
                yield news
        _show(art, story, how, grace)
        return _said(story, expected, how, grace)

    controls = {
        "how": choice("Engine A", (STOP, DIE)),
        "grace": slider("Grace (steps)", 0, 24, 8, 2),
        "seats": slider("Requests that an engine runs at a time", 3, 6, 4),
    }
    return Panel(_draw, update, controls, run="Run", size=(8, 3))


def _draw(figure: Figure) -> dict[str, Any]:
    axes = figure.subplots()
    axes.grid(False)
    axes.set(xlim=(0, LAST_STEP), ylim=(REQUESTS - 0.4, -0.6), xlabel="step", ylabel="request")
    axes.set_yticks(range(REQUESTS), [str(i) for i in range(REQUESTS)], fontsize=9)
    look = {"edgecolor": "white", "linewidth": 0.4}
    art: dict[str, Any] = {
        name: Blocks(axes, k, f"a token from {name}", **look) for k, name in enumerate(NAMES)
    }
    art[WAITS] = Blocks(
        axes, 4, WAITS, facecolor="white", edgecolor=GREY, hatch="....", linewidth=0.4
    )
    art["event"] = axes.axvline(EVENT, color=BLACK, linewidth=1.2, linestyle="-")
    art["until"] = axes.axvline(EVENT, color=BLACK, linewidth=1.2, linestyle=":")
    axes.legend(handles=[art[k] for k in (*NAMES, WAITS)], ncols=4, fontsize=9, handlelength=1.4,
                loc="lower left", bbox_to_anchor=(-0.01, 0.97), borderpad=0.2)  # fmt: skip
    source_note(axes, "Measured here")
    return art


def _show(art: dict[str, Any], story: Story, how: str, grace: int) -> None:
    places: dict[str, tuple[list[int], list[float]]] = {k: ([], []) for k in (*NAMES, WAITS)}
    for y, served in enumerate(story.served):
        for x, name in enumerate(served):
            xs, ys = places[WAITS if name is None else name]
            xs.append(x)
            ys.append(y - 0.38)
    for name, (xs, ys) in places.items():
        art[name].set_boxes(xs, ys, 1, 0.76)
    end = EVENT + (grace if how == STOP else 0)
    art["until"].set_xdata([end, end])


def _said(story: Story, expected: list[list[int]], how: str, grace: int) -> str:
    same = sum(story.tokens[i] == tokens for i, tokens in enumerate(expected))
    total = sum(map(len, expected))
    assert story.fleet is not None
    if how == STOP:
        went = (
            f"Engine A is asked to stop at step {EVENT} and has {grace} steps of grace. Then it "
            f"forwards {many(story.count('moves'), 'request')} with "
            f"{story.moved_bytes / 1e6:.1f} MB of cache; {story.recomputed} tokens are "
            "computed again."
        )
    else:
        went = (
            f"Engine A dies at step {EVENT}, and its cache with it. What it had, "
            f"{many(story.count('restarts'), 'request')}, goes on elsewhere from the tokens alone: "
            f"{story.recomputed} are computed again; there is no grace."
        )
    return (
        f"Measured here. {went} {same} of {REQUESTS} answers, {total} tokens, are equal to those "
        f"of an engine that nothing happens to; the last ends at step {story.fleet.steps}."
    )
