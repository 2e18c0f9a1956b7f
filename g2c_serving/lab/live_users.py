"""Four users at one engine: type what they ask, press Run, and watch it being served.

This file is the run, `live_panel.py` the picture. A user whose line is empty is not there. The
others come one after the other, a few steps apart. The first may want a second answer, which forks
off in the middle of the first one and shares its blocks. Under a budget the planner goes by an
invented step time, so that the run is the same on every machine.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from g2c_serving.backend import opened as with_opening
from g2c_serving.config import EngineConfig, Speculation
from g2c_serving.engine import Engine
from g2c_serving.forward.language_model import LanguageModel
from g2c_serving.history import StepRecord
from g2c_serving.intake import encode_prompt
from g2c_serving.output import RequestOutput
from g2c_serving.process.chat import chat
from g2c_serving.request import SamplingParams

ASKED = {
    "Ada": "Tell me a story about Mia and a red kite.",
    "Ben": "What is the weather in Oslo?",
    "Cleo": "My friend Hugo lives near the lake.",
    "Dan": "What does a fox like?",
}
OFF, FIXED, BUDGETED = "off", "fixed", "budgeted"
TOKENS, APART, FORK_AT = 40, 3, 12  # of an answer; steps between two arrivals; tokens until a fork
BLOCK = 16  # tokens
MOST_CHARACTERS = 20_000  # of a question: more is not even encoded
KEPT = "kept for later"


@dataclass
class User:
    """Who asked, and how it stands: one line of the picture."""

    name: str
    arrives: int
    prompt: Any
    request_id: int | None = None
    output: RequestOutput | None = None
    drafts: tuple[int, int] = (0, 0)  # checked and accepted in the last step

    @property
    def has_ended(self) -> bool:
        return self.output is not None and self.output.finish_reason is not None


@dataclass
class Room:
    """One run: the engine, its users, and what there was to see after each step."""

    engine: Engine
    users: list[User]
    wants_fork: bool
    waiting: list[int] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    owners: list[dict[str, list[int]]] = field(default_factory=list)  # blocks by user, or KEPT
    checked: int = 0
    accepted: int = 0

    def run(self) -> Iterator[None]:
        """A step at a time, until everybody has an answer."""
        step = 0
        while any(not user.has_ended for user in self.users):
            for user in self.users:
                if user.request_id is None and user.arrives <= step:
                    user.request_id = self.engine.add(user.prompt, self._params(user))
            for output in self.engine.step():
                self._of(output.request_id).output = output
            self._note(self.engine.history[-1])
            self._fork()
            step += 1
            yield

    def _params(self, user: User) -> SamplingParams:
        end = self.engine.lm.tokenizer.reserved.get("<|end|>")
        stop = () if end is None or end >= self.engine.lm.vocab_size else (end,)
        return SamplingParams(TOKENS, temperature=0.7, seed=len(user.name), stop_token_ids=stop)

    def _of(self, request_id: int) -> User:
        return next(user for user in self.users if user.request_id == request_id)

    def _note(self, record: StepRecord) -> None:
        self.waiting.append(record.num_waiting)
        self.running.append(record.num_running)
        self.owners.append(self._blocks())
        drafts = {d.request_id: (d.verified, d.accepted) for d in record.drafts}
        for user in self.users:
            user.drafts = drafts.get(-1 if user.request_id is None else user.request_id, (0, 0))
        self.checked += sum(verified for verified, _ in drafts.values())
        self.accepted += sum(accepted for _, accepted in drafts.values())

    def _fork(self) -> None:
        first = self.users[0]
        if not self.wants_fork or first.output is None or first.has_ended:
            return
        if len(first.output.token_ids) >= FORK_AT:
            child = self.engine.fork(first.output.request_id)
            self.users.append(User(f"{first.name} again", first.arrives, None, child))
            self.wants_fork = False

    def _blocks(self) -> dict[str, list[int]]:
        """The blocks of each user, and those that nobody uses but whose content is kept."""
        manager, found = self.engine.block_manager, {}
        for user in self.users:
            if user.request_id is not None and not user.has_ended:
                (request,) = self.engine.unfinished(user.request_id)
                found[user.name] = list(manager.tables.get(request.sequence_id, ()))
        return {**found, KEPT: list(manager.cached_blocks)}

    def state(self, user: User) -> str:
        """What a user sees happen, in a few words."""
        if user.request_id is None:
            return "is not here yet"
        if user.has_ended:
            assert user.output is not None
            return f"done: {user.output.finish_reason}, {len(user.output.token_ids)} tokens"
        (request,) = self.engine.unfinished(user.request_id)
        if request.state != "running":
            return "waits" if not request.num_preemptions else "waits again (preempted)"
        said = f"writes, {request.num_generated} tokens"
        checked, accepted = user.drafts
        return f"{said}, {accepted} of {checked} drafts stand" if checked else said


def opened(
    lm: LanguageModel,
    drafter: LanguageModel | None,
    asked: dict[str, str],
    seats: int,
    blocks: int,
    speculation: str,
    fork: bool,
) -> Room:
    """An engine, and the users who typed something. ValueError if nobody did, or one too much."""
    present = [(name, words) for name, words in asked.items() if words.strip()]
    if not present:
        raise ValueError("nobody asks anything: type a question for at least one user")
    guess = None
    if drafter is not None and speculation != OFF:
        guess = Speculation(speculation, drafter=drafter, step_time=lambda rows: 20 + 0.6 * rows)
    made = EngineConfig(
        num_blocks=blocks, block_size=BLOCK, max_num_seqs=seats, max_num_batched_tokens=64,
        enable_prefix_caching=True, speculation=guess,
    )  # fmt: skip
    room = min(lm.config.max_seq_len - 1, blocks * BLOCK - TOKENS)
    users = [
        User(n, APART * k, _prompt(lm, n, words, room)) for k, (n, words) in enumerate(present)
    ]
    return Room(Engine(lm, made), users, fork)


def _prompt(lm: LanguageModel, name: str, words: str, room: int) -> Any:
    """The prompt of one user, who is named if it is longer than `room` tokens."""
    short = ValueError(
        f"what {name} asks is too long: {lm.name} and these blocks have room for {room} tokens. "
        "Ask less, or choose more blocks"
    )
    if len(words) > MOST_CHARACTERS:
        raise short
    prompt = as_chat(lm, words)
    if len(encode_prompt(lm.tokenizer, prompt)) > room:
        raise short
    return prompt


def as_chat(lm: LanguageModel, words: str) -> Any:
    """A user's turn in the chat template; where the vocabulary has none, the words alone, after
    what the tokenizer puts before a text."""
    known = lm.tokenizer.reserved
    if "<|user|>" in known and "<|assistant|>" in known:
        return chat([{"role": "user", "content": words}])
    return with_opening(lm.tokenizer, words)


def sentence(room: Room) -> str:
    """How it went."""
    said = [f"{user.name} {room.state(user)}" for user in room.users]
    drafts = f" Of {room.checked} checked drafts {room.accepted} stood." if room.checked else ""
    missed = f" {room.users[0].name} was done before the fork." if room.wants_fork else ""
    stats, most = room.engine.stats, max(room.waiting)
    waited = f"At most {most} waited" if most else "Nobody waited"
    return (
        f"{stats.steps} steps. {'; '.join(said)}. {waited}, "
        f"at most {stats.peak_blocks} of {room.engine.config.num_blocks} blocks were in use; "
        f"{stats.preemptions} preemptions.{missed}{drafts}"
    )
