"""Where informed readers push back: each claim with what speaks for it and against, our runs too.

Brief, "Where informed readers will push back". Evidence that can be computed in a moment is, when
the table is made; the rest names the notebook that measures it on your machine (approximations that
stack up: stacked.py). What only the authors could show stands under "open".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from g2c_serving.lab import accept_rule, accepted_length, implied_steps, production_load, toy_budget
from g2c_serving.lab.guard import guard_effect
from g2c_serving.lab.hit_calculator import EXAMPLE, FLASH
from g2c_serving.lab.load_model import compare
from g2c_serving.lab.published import LABELS
from g2c_serving.lab.table import Table
from g2c_serving.sample.speculation import GUARD

FOR, AGAINST, OPEN = "for", "against", "open"


@dataclass(frozen=True)
class Evidence:
    """`side`: for, against, open. `what`: the words, or a function that works them out."""

    side: str
    label: str
    what: str | Callable[[], str]
    where: str = ""

    def __post_init__(self) -> None:
        if self.side not in (FOR, AGAINST, OPEN):
            raise ValueError(f"side {self.side!r} must be {FOR}, {AGAINST} or {OPEN}")
        if self.label not in LABELS:
            raise ValueError(f"label {self.label!r} must be one of {list(LABELS)}")

    @property
    def text(self) -> str:
        return self.what if isinstance(self.what, str) else self.what()


@dataclass(frozen=True)
class Claim:
    name: str
    claim: str
    evidence: tuple[Evidence, ...]


def _hits() -> str:
    held, gone, none = FLASH.cases(EXAMPLE).values()
    return (
        "the rules as they are told suffice to build it: the example's "
        f"{held.computed}, {gone.computed} and {none.computed:,} computed tokens come out"
    )


def _guard() -> str:
    p, q = (tuple(bars) for bars in (accept_rule.TARGET, accept_rule.DRAFTER))
    off = float(guard_effect(p, q).total_variation)
    return (
        f"the tiny term in the rejection formula moves about 1 in "
        f"{round(1 / off, -3):,.0f} draws in our example, "
        f"and never more than 1 in {1 / GUARD:,.0f}"
    )


def _loads() -> str:
    gains = ", ".join(f"{compare(n).gain:+.1f} % at {n}" for n in production_load.REPORTED)
    return f"a planner in a simulation of ours gains more with the load, too: {gains} requests"


def _loss() -> str:
    found = compare(16)
    return (
        f"the reported -1.5 % at 16 requests: a planner that costs nothing cannot lose (ours: "
        f"{found.gain:+.1f} %), and what makes the difference is not said"
    )


def _sums() -> str:
    return (
        f"the printed gain is the quotient of the printed throughputs: {toy_budget.gain():+.1f} %"
    )


def _worlds() -> str:
    alone, both = (accepted_length.world(counts) for counts in (False, True))
    return (
        f"3.30 without the ordinary token makes the chart's 75 % a share ({alone.share3:.1%} of "
        f"three), with it a chance ({both.chance:.1%}): both fit, and nobody says which"
    )


def _steps() -> str:
    fixed, budget = (implied_steps.fits_at(mode, False) for mode in ("fixed", "budget"))
    return (
        "table and decode chart fit together, if 3.30 counts the ordinary token: their steps are "
        f"as long at {fixed:.0f} requests, and at {budget:.0f} for the budget; said is about 60"
    )


CLAIMS = (
    Claim("parts", "The most distinctive parts are not in the code.", (
        Evidence(FOR, "Reported", "the 72-hour cache, hash chains, balancers and the split over "
                 "machines are described, and not released"),
        Evidence(AGAINST, "Derived", _hits, "notebook 02"),
        Evidence(OPEN, "Not disclosed", "at which hit rates and loads they make the service cheap"),
    )),
    Claim("one_model", "One model, two chips.", (
        Evidence(FOR, "Reported", "only V4.1-Flash, on SM100 or Ascend 950"),
        Evidence(FOR, "Derived", "our forward pass, too, knows the shapes that it was written for, "
                 "GPT's and Llama's, and refuses all others", "forward/hugging_face_config.py"),
        Evidence(AGAINST, "Derived", "scheduler, pages, draws and planner ask little of the model: "
                 "ours serve both shapes, and window layers, with the same files", "notebook 02"),
        Evidence(OPEN, "Not disclosed", "whether others can extend it"),
    )),
    Claim("approximations", "Approximations stack up.", (
        Evidence(FOR, "Measured here", "a lost window state comes back a little different, and now "
                 "and then another token is the likeliest", "notebook 02"),
        Evidence(FOR, "Derived", "a block of FP4 has one scale: an outlier costs its neighbours "
                 "their digits", "forward/low_precision.py"),
        Evidence(FOR, "Measured here", "with replay and an FP4 cache together more of our model's "
                 "draws leave an exact run's, more than with either alone", "notebook 07"),
        Evidence(AGAINST, "Measured here", "less than the two add up to, and of the guard's part "
                 "there is next to nothing", "notebook 07"),
        Evidence(AGAINST, "Derived", _guard, "notebook 04"),
        Evidence(OPEN, "Not disclosed", "how far production is from an exact run, all together"),
    )),
    Claim("determinism", "Determinism is opt-in and partial.", (
        Evidence(FOR, "Measured here", "with a budget the same request takes another path beside "
                 "another neighbour; so it does without invariance, now and then", "notebook 04"),
        Evidence(AGAINST, "Measured here", "with own seeds, fixed verification and "
                 "invariant kernels every run was equal, so it can be had", "notebooks 03, 04"),
        Evidence(OPEN, "Not disclosed", "what batch invariance costs DeepInfer"),
    )),
    Claim("self_reported", "All throughput is self-reported, and some of it estimated.", (
        Evidence(FOR, "Simulated", _loss, "notebook 04"),
        Evidence(FOR, "Derived", _worlds, "this notebook"),
        Evidence(AGAINST, "Derived", _sums, "notebook 04"),
        Evidence(AGAINST, "Simulated", _steps, "this notebook"),
        Evidence(AGAINST, "Simulated", _loads, "notebook 04"),
        Evidence(OPEN, "Not disclosed", "GPUs, tokens by kind, and the traffic behind the table"),
    )),
)  # fmt: skip


def table(claims: Sequence[Claim] = CLAIMS) -> Table:
    """A line for each piece of evidence; the claim stands at the first."""
    rows = []
    for claim in claims:
        for k, one in enumerate(claim.evidence):
            rows.append((claim.claim if k == 0 else "", one.side, one.text, one.label, one.where))
    return Table(("claim", "speaks", "evidence", "label", "where"), rows, words=5)
