"""Made-up traffic of five weeks: who comes back to which cached context, and when. Simulated.

Brief, section 2. Two classes. Chat: people take turns within minutes, and some of them take the
conversation up again on another day; all chats begin with one of a few shared preambles, which is
the small part of the cache that is reread very many times. Agents: a burst of many turns, a tool
call apart, and then never again, but for a few. `ASSUMPTIONS` lists every number; none of them is
disclosed, all are ours. No daily rhythm.

Each request uses two cached objects: the history of its conversation, and its preamble. A use
finds what the object had before, in whole blocks under the hit rule, and leaves it longer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from g2c_serving.lab.hit_calculator import FLASH
from g2c_serving.lab.table import Table

DAY = 86_400.0  # seconds
WARM_UP, MEASURED = 14 * DAY, 21 * DAY
ONCE, AGAIN, TASK, SHARED = range(4)  # kinds of objects: chat of one session, of several, agent's
BASE_SHARE = 0.5  # of the chats in the trace that are taken up again; weights make it any other


@dataclass(frozen=True)
class Habits:
    """How one class behaves. Times in seconds, sizes in tokens; a pair is a log-normal's median
    and sigma, a mean is a geometric distribution's."""

    started: float  # conversations a day
    turns: float  # mean number in a session
    think: tuple[float, float]  # between the turns of a session
    returns: float  # mean number of later sessions, of those that come back at all
    away: tuple[float, float]  # from the start of a session to that of the next
    asks: tuple[float, float]  # new tokens of a turn
    answers: tuple[float, float]  # tokens that the model writes
    preambles: int  # shared ones; the k-th is chosen 1/k as often as the first
    preamble: int  # tokens of each


CHATS = Habits(200, 4, (90, 1.0), 2, (DAY, 1.5), (120, 1.0), (350, 0.8), 4, 1_500)
AGENTS = Habits(25, 30, (15, 1.2), 1, (4 * 3600, 1.5), (800, 1.2), (200, 1.0), 6, 8_000)
AGENTS_RESUMED = 0.05  # share of agents' tasks that are taken up again once more


@dataclass(frozen=True)
class Uses:
    """Uses of cached objects in the order of time, each field an array (n,).

    found, size   tokens that the object had for this request, and that it has after it
    length        tokens of the whole request on the row of its conversation, 0 on its preamble's
    kind, asked   kind of the object, and of the conversation that used it
    """

    time: np.ndarray
    thing: np.ndarray
    kind: np.ndarray
    asked: np.ndarray
    found: np.ndarray
    size: np.ndarray
    length: np.ndarray

    @property
    def is_chat(self) -> np.ndarray:
        return self.asked != TASK

    def rows(self, chosen: np.ndarray) -> Uses:
        """Those uses alone, or in that order."""
        return Uses(*(getattr(self, field.name)[chosen] for field in fields(self)))


def within(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Running sums that start anew in each group; `counts` are the groups' lengths."""
    total, starts = np.cumsum(values), np.cumsum(counts) - counts
    return total - np.repeat(total[starts] - values[starts], counts)


def reusable(cached: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Tokens that the hit rule lets a request take from `cached` ones: schedule/hit_rule.py with
    the window state held, for arrays."""
    size = FLASH.block_size
    return np.clip(np.minimum(cached, length - FLASH.never_cached), 0, None) // size * size


def uses(habits: Habits, share: float, kinds: tuple[int, int], first: int, seed: int) -> Uses:
    """What one class does in all five weeks. kinds: of a conversation with one session, with more.

    share is that of conversations with more; objects are numbered from `first`, preambles before.
    """
    draw, until = np.random.default_rng(seed), WARM_UP + MEASURED
    count = int(habits.started * until / DAY)
    started = np.sort(draw.uniform(0, until, count))
    again = draw.random(count) < share
    sessions = np.where(again, 1 + draw.geometric(1 / habits.returns, count), 1)
    away = _lognormal(draw, habits.away, sessions.sum())
    away[np.cumsum(sessions) - sessions] = 0  # the first session begins with its conversation
    begins = np.repeat(started, sessions) + within(away, sessions)
    turns = draw.geometric(1 / habits.turns, len(begins))
    think = _lognormal(draw, habits.think, turns.sum())
    think[np.cumsum(turns) - turns] = 0
    time = np.repeat(begins, turns) + within(think, turns)  # (requests,)
    per_conversation = np.add.reduceat(turns, np.cumsum(sessions) - sessions)
    asks, answers = (_lognormal(draw, how, len(time)).astype(int) + 1
                     for how in (habits.asks, habits.answers))  # fmt: skip
    history = within(asks + answers, per_conversation) - asks - answers
    conversation = np.repeat(np.arange(count), per_conversation)
    ranks = 1 / np.arange(1, habits.preambles + 1)
    preamble = draw.choice(habits.preambles, count, p=ranks / ranks.sum())[conversation]
    length = habits.preamble + history + asks
    of_preamble = reusable(np.full(len(time), habits.preamble), length)
    kind = np.where(again, kinds[1], kinds[0])[conversation]
    own = Uses(time, first + habits.preambles + conversation, kind, kind,
               reusable(habits.preamble + history, length) - of_preamble,
               history + asks + answers, length)  # fmt: skip
    shared = Uses(time, first + preamble, np.full(len(time), SHARED), kind, of_preamble,
                  np.full(len(time), habits.preamble), np.zeros(len(time), int))  # fmt: skip
    return _merged(own, shared)


def trace(chats: Habits = CHATS) -> Uses:
    """Both classes together, in the order of time."""
    chat = uses(chats, BASE_SHARE, (ONCE, AGAIN), 0, 0)
    agent = uses(AGENTS, AGENTS_RESUMED, (TASK, TASK), int(chat.thing.max()) + 1, 1)
    both = _merged(chat, agent)
    return both.rows(both.time < WARM_UP + MEASURED)


def _merged(one: Uses, other: Uses) -> Uses:
    """Both in the order of time; at equal times `one` first, so a preamble is the fresher one."""
    together = Uses(
        *(np.concatenate([getattr(one, f.name), getattr(other, f.name)]) for f in fields(Uses))
    )
    return together.rows(np.argsort(together.time, kind="stable"))


def _lognormal(draw: np.random.Generator, how: tuple[float, float], count: int) -> np.ndarray:
    return np.exp(np.log(how[0]) + how[1] * draw.standard_normal(count))


def assumptions() -> Table:
    """Every number that the simulation takes for granted."""
    rows = []
    for what, cells in (
        ("conversations or tasks started a day", lambda h: f"{h.started:g}"),
        ("turns in a session (mean)", lambda h: f"{h.turns:g}"),
        ("between its turns (median)", lambda h: f"{h.think[0]:g} s"),
        ("later sessions, where there are any (mean)", lambda h: f"{h.returns:g}"),
        ("until the next session (median, sigma)",
         lambda h: f"{h.away[0] / 3600:g} h, {h.away[1]:g}"),
        ("new tokens of a turn, of an answer (medians)",
         lambda h: f"{h.asks[0]:g}, {h.answers[0]:g}"),
        ("shared preambles, tokens of each", lambda h: f"{h.preambles}, {h.preamble:,}"),
    ):  # fmt: skip
        rows.append((what, cells(CHATS), cells(AGENTS)))
    rows.insert(3, ("share taken up again", "the slider", f"{AGENTS_RESUMED:.0%}"))
    return Table(("Simulated", "chat", "agents"), rows)
