"""GPUs that decode in step, behind a router: each step takes as long as the slowest GPU.

Brief, "The parts that are pure infrastructure". With experts spread over all GPUs, these exchange
tokens in every layer, so none is ahead of the others; a GPU with more requests or longer caches
holds up all. Reported: requests are spread to balance both, and the whole system reaches about 80 %
of a perfectly balanced offline benchmark. Here a perfectly balanced step has the mean of both on
every GPU, and `efficiency` is its time over the real step's. As many requests run all the time: for
one that ends another comes at once, and stays where it was put.

Simulated, on the virtual clock, in whole microseconds. Step times are linear in requests and cached
tokens. Left out: requests that wait, fewer requests at night, migration, failures, prefill.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from g2c_serving.checks import as_int, as_number
from g2c_serving.cluster.routing import Machines, Request, Router
from g2c_serving.schedule.cost_model import CostModel
from g2c_serving.virtual_clock import VirtualClock


@dataclass(frozen=True)
class Traffic:
    """What comes: prompts of `context` tokens on average, lognormal with `spread` the standard
    deviation of the logarithm; answers of `answer` tokens on average, exponential, of which a step
    makes `per_step`."""

    context: float = 65536.0
    spread: float = 1.0
    answer: float = 650.0
    per_step: float = 3.25

    def __post_init__(self) -> None:
        for name in ("context", "answer", "per_step"):
            if as_number(name, getattr(self, name)) <= 0:
                raise ValueError(f"{name}={getattr(self, name)} must be above 0")
        if as_number("spread", self.spread) < 0:
            raise ValueError(f"spread={self.spread} must be 0 or more: 0 is all prompts alike")

    def draw(self, number: int, random: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
        """Prompts' tokens (number,), and the steps that their answers take (number,)."""
        normals = random.standard_normal(number)
        contexts = self.context * np.exp(self.spread * normals - self.spread**2 / 2)
        answers = random.exponential(self.answer / self.per_step, number)
        return np.ceil(contexts), np.maximum(1, np.ceil(answers))


@dataclass
class DecodeRun:
    """A run of T steps on G GPUs: requests (T, G) and cached tokens (T, G) that each had."""

    requests: np.ndarray
    cached: np.ndarray
    cost: CostModel
    began: list[int]  # by request: its first step, counted from 0
    ended: list[int]  # and the one after its last; one more than all steps: not yet

    @property
    def gpu_ms(self) -> np.ndarray:
        """ms that each GPU needs for each step (T, G)."""
        cost = self.cost
        return cost.base + cost.per_row * self.requests + cost.per_context * self.cached

    def efficiency(self, experts: float = 1.0, share: float = 0.5) -> float:
        """Perfectly balanced steps' time over these steps'. `experts`: the busiest GPU's expert
        load over the average, which stretches a `share` of each balanced step."""
        if as_number("experts", experts) < 1 or not 0 <= as_number("share", share) <= 1:
            raise ValueError(f"experts={experts} must be 1 or more, share={share} from 0 to 1")
        ms = self.gpu_ms
        perfect, slowest = ms.mean(1).sum(), ms.max(1).sum()
        return float(perfect / (slowest + (experts - 1) * share * perfect))


class DecodePool:
    """`gpus` with `per_gpu` requests each on average, which `router` puts on them. The first ones
    are there from the start: what is left of an exponential answer is as long as a new one."""

    def __init__(
        self, gpus: int, per_gpu: int, router: Router, cost: CostModel,
        traffic: Traffic | None = None, seed: int = 0,
    ) -> None:  # fmt: skip
        self.clock, self.router, self.cost = VirtualClock(), router, cost
        self.traffic, self._random = traffic or Traffic(), np.random.default_rng(seed)
        self.machines = Machines.idle(as_int("gpus", gpus, 1))
        self.step = 0  # steps made
        self.began: list[int] = []  # by request, as in DecodeRun; 0: has not ended
        self.ended: list[int] = []
        places = gpus * as_int("per_gpu", per_gpu, 1)  # one for each request that runs:
        self._who, self._gpu = np.zeros((2, places), int)  # which request, and where
        self._context, self._left = np.zeros((2, places))  # its tokens, the steps that it takes yet
        self._admit(np.arange(places))

    def run(self, steps: int) -> DecodeRun:
        """Play so many steps more."""
        shape = as_int("steps", steps, 1), len(self.machines)
        run = DecodeRun(np.zeros(shape), np.zeros(shape), self.cost, self.began, [])
        self.clock.start(self._loop(run))
        self.clock.run()
        run.began, run.ended = list(self.began), [end or self.step + 1 for end in self.ended]
        return run

    def _loop(self, run: DecodeRun) -> Iterator[int]:
        machines, cost, per_step = self.machines, self.cost, self.traffic.per_step
        for requests, cached in zip(run.requests, run.cached, strict=True):
            requests[:], cached[:] = machines.requests, machines.cached
            ms = cost.base + cost.per_row * requests + cost.per_context * cached
            yield round(1000 * float(ms.max()))
            self.step += 1
            self._context += per_step
            self._left -= 1
            machines.cached[:] += per_step * machines.requests
            self._leave(np.flatnonzero(self._left <= 0))

    def _leave(self, places: np.ndarray) -> None:
        gpus = self._gpu[places]
        np.subtract.at(self.machines.requests, gpus, 1)
        np.subtract.at(self.machines.cached, gpus, self._context[places])
        for who in self._who[places].tolist():
            self.ended[who] = self.step
        self._admit(places)

    def _admit(self, places: np.ndarray) -> None:
        """New requests for these places, one after the other."""
        machines = self.machines
        contexts, left = self.traffic.draw(len(places), self._random)
        for place, context in zip(places.tolist(), contexts.tolist(), strict=True):
            gpu = self.router(machines, Request(int(context)))
            machines.requests[gpu] += 1
            machines.cached[gpu] += context
            self._gpu[place], self._who[place] = gpu, len(self.began)
            self.began.append(self.step)
            self.ended.append(0)
        self._context[places], self._left[places] = contexts, left
