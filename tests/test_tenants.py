"""Tenants: what is cached for one salt is never found with another, on any tier, in any engine or
process; and nothing that a tenant gets to see tells what another has asked.

Right values: a naive list of what each tenant alone has sent; the same tenant without the others.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from fakes import GREEDY, continuation, engine, run
from small_models import random_lm
from test_openai_server import LM, ask

import g2c_serving as g
from g2c_serving.lab import openai_server
from g2c_serving.schedule.block_hash import hash_chain

TENANTS = ("", "ann", "bob")
ALIKE = ["", "a", "a\0", "\0a", "A", "a ", "é", "e\u0301", "\ud800\udc00", "\U00010000", "\ud800",
         "'; DROP TABLE blocks; --", '"', "../..", "a" * 4095, "a" * 4096]  # fmt: skip


def longest(prompt: list[int], earlier: list[list[int]], block_size: int) -> int:
    """Tokens of the longest beginning of whole blocks that an earlier text has too, one token of
    the prompt being left to compute."""
    most = 0
    for text in earlier:
        same = next((i for i, (a, b) in enumerate(zip(prompt, text, strict=False)) if a != b),
                    min(len(prompt), len(text)))  # fmt: skip
        most = max(most, min(same, len(prompt) - 1) // block_size * block_size)
    return most


def prompts(rng: random.Random, count: int) -> list[tuple[str, list[int]]]:
    """(tenant, prompt), with beginnings that they share."""
    begin = [rng.choices(range(5), k=8) for _ in range(2)]
    return [
        (rng.choice(TENANTS), rng.choice(begin) + rng.choices(range(2), k=rng.randint(0, 9)))
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_any_mix_of_tenants_finds_what_each_has_left_itself(seed, tmp_path):
    """Over two engines that share a disk, one after the other."""
    rng, earlier = random.Random(seed), {tenant: [] for tenant in TENANTS}
    disk = dict(enable_prefix_caching=True, cache_dir=tmp_path, cache_bytes=1 << 20, num_blocks=900)
    engines = [engine(**disk), engine(**disk)]
    for tenant, prompt in prompts(rng, 40):
        e = rng.choice(engines)
        request = e.add(prompt, GREEDY, tenant)
        out = run(e)[request]
        assert out.num_cached_tokens == longest(prompt, earlier[tenant], 4)
        assert out.token_ids == continuation(prompt, len(out.token_ids))
        earlier[tenant].append(prompt + out.token_ids[:-1])  # the last is never computed
    found = [longest(p, texts, 4) for texts in earlier.values() for p in texts]
    assert sum(found) > 0  # there was something to find


def seen(e: g.Engine, tenant: str, asked: list[list[int]]) -> list[tuple]:
    """All that a tenant sees of its requests, and how much was computed for each."""
    found = []
    for prompt in asked:
        before = len(e.history)
        request = e.add(prompt, GREEDY, tenant)
        out = run(e)[request]
        steps = [e.history[i].num_tokens for i in range(before, len(e.history))]
        found.append((out.token_ids, out.num_cached_tokens, out.text, steps))
    return found


@pytest.mark.parametrize("other", ["ann", ""])
@pytest.mark.parametrize("on_disk", [False, True])
def test_a_tenant_cannot_tell_what_another_has_asked(other, on_disk, tmp_path):
    """Prompt by prompt, the attack on a shared cache: the tokens found and the work of each step
    are those of an engine that nobody else uses."""
    asked = [p for _, p in prompts(random.Random(7), 12)]
    disk = dict(cache_dir=tmp_path, cache_bytes=1 << 20) if on_disk else {}
    caching = dict(enable_prefix_caching=True, num_blocks=900)
    shared, alone = engine(**caching, **disk), engine(**caching)
    theirs = seen(shared, other, asked)
    if on_disk:
        shared = engine(**caching, **disk)
    mine = seen(shared, "bob", asked)
    assert mine == seen(alone, "bob", asked) == theirs
    assert sum(found for _, found, *_ in mine) > 0


def test_salts_that_look_alike_are_others():
    names = [hash_chain([1, 2, 3, 4], 4, salt, "")[0] for salt in ALIKE]
    assert len(set(names)) == len(ALIKE)


def test_an_engine_takes_them_for_others():
    e, prompt = engine(enable_prefix_caching=True, num_blocks=900), [3, 1, 4, 1, 5, 9]
    found = [seen(e, salt, [prompt])[0][1] for salt in (*ALIKE, *ALIKE)]
    assert found == [0] * len(ALIKE) + [4] * len(ALIKE)


def test_samples_and_forks_stay_with_their_tenant():
    e, prompt = engine(enable_prefix_caching=True), [3, 1, 4, 1, 5, 9, 2, 6, 5]
    request = e.add(prompt, GREEDY, "ann")
    e.step()
    fork = e.fork(request)
    text = prompt + run(e)[fork].token_ids
    e.add(prompt, g.SamplingParams(max_tokens=6, n=2, seed=1), "ann")
    run(e)
    found = [seen(e, tenant, [text])[0][1] for tenant in ("bob", "", "ann")]
    assert found == [0, 0, longest(text, [text[:-1]], 4)] and found[2] >= 8


CHILD = """
import sys
sys.path.insert(0, sys.argv[1])
from fakes import GREEDY, engine, run
e = engine(enable_prefix_caching=True, cache_dir=sys.argv[2], cache_bytes=1 << 20)
e.add([3, 1, 4, 1, 5, 9, 2, 6, 5], GREEDY, sys.argv[3])
run(e)
"""


def test_other_processes_share_the_disk_by_salt_alone(tmp_path):
    """And no salt lies there, nor a token."""
    salt = "ann's own secret"
    command = [sys.executable, "-c", CHILD, str(Path(__file__).parent), str(tmp_path), salt]
    subprocess.run(command, check=True, timeout=60)
    disk = dict(enable_prefix_caching=True, cache_dir=tmp_path, cache_bytes=1 << 20)
    found = [
        seen(engine(**disk), tenant, [[3, 1, 4, 1, 5, 9, 2, 6, 5]])[0][1]
        for tenant in ("bob", "", salt.upper(), salt)
    ]
    assert found == [0, 0, 0, 8]
    files = [p for p in tmp_path.rglob("*") if p.is_file()]
    assert len(files) > 3 and not any(salt.encode() in p.read_bytes() for p in files)


def test_window_states_go_by_the_tenant_too(tmp_path):
    lm = random_lm(layers=3, window=6, window_layers=(0, 1))
    disk = dict(enable_prefix_caching=True, cache_dir=tmp_path, cache_bytes=1 << 20, block_size=4)
    e = g.Engine(lm, g.EngineConfig(num_blocks=50, **disk))
    prompt = torch.randint(0, 200, (24,), generator=torch.Generator().manual_seed(3)).tolist()
    greedy = g.SamplingParams(temperature=0, max_tokens=2, ignore_eos=True)
    found = []
    for tenant in ("ann", "bob", "ann"):
        (out,) = e.generate([prompt], greedy, cache_salt=tenant)
        found.append(out.num_cached_tokens)
    assert found[:2] == [0, 0] and found[2] > 0


@contextmanager
def served(monkeypatch):
    """The address of a server, and its engine."""
    engines = []
    plain = openai_server.CompletionServer.__init__

    def keep(self, engine, reader=None):
        engines.append(engine)
        plain(self, engine, reader)

    monkeypatch.setattr(openai_server.CompletionServer, "__init__", keep)
    with openai_server.running(LM) as address:
        yield address, engines[0]


def test_the_server_keeps_them_apart(monkeypatch):
    """A client's `cache_salt` counts, and no answer says how much was found."""
    body = {"prompt": "Once upon a time there was a hen. " * 4, "max_tokens": 2, "temperature": 0}
    with served(monkeypatch) as (address, e):
        found, answers = [], []
        for salt in ("ann", "bob", None, "ann"):
            status, content = ask(address, body | {"cache_salt": salt})
            assert status == 200
            found.append(e.prefix_cache.cached_tokens)
            answer = json.loads(content)
            answers.append((answer["choices"], answer["usage"]))
        assert found[:3] == [0, 0, 0] and found[3] >= 16
        assert answers == [answers[0]] * 4 and "cached" not in json.dumps(answers)
        for bad in (5, ["a"], "a" * 4097):
            status, content = ask(address, body | {"cache_salt": bad})
            assert status == 400 and b"cache_salt" in content
