"""The guard: what makes the host wait is refused with its line, all else passes.

What waits is torch's own word: the calls of its `test_sync_warning` (test_torch.py, run on cuda),
and for those that take a number of a tensor its own dispatcher, which is asked here.
"""

from __future__ import annotations

import json
import linecache
import math
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_models import random_lm
from torch.utils._python_dispatch import TorchDispatchMode

import g2c_serving as g
from g2c_serving.forbid_sync import BARRIERS, ForbiddenSync, allow_sync, forbid_sync
from g2c_serving.forward.layers import Block

X = torch.arange(6.0).view(2, 3)
MASK = X > 2
I = torch.tensor([0, 1])  # noqa: E741
ONE = torch.tensor(1)
REPEATS = torch.full((1,), 2)
HOST = torch.from_numpy(np.zeros(3))


class Asked(TorchDispatchMode):
    """Which of torch's inner calls read a tensor on the host."""

    READS = ("_local_scalar_dense", "nonzero", "aten.equal", "masked_select", "unique")

    def __init__(self):
        super().__init__()
        self.reads = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.reads += [name for name in self.READS if name in str(func)]
        return func(*args, **(kwargs or {}))


def put(x, index, value):
    x[index] = value


def condition(y):
    return 2 * y if y > 0 else y


# ---- what waits ----

TORCH_SAYS_WAITS = [
    lambda: put(X.clone(), MASK, X[0, 0]),
    lambda: X[MASK],
    lambda: X.nonzero(),
    lambda: condition(X.sum()),
    lambda: F.one_hot(I),
    lambda: torch.repeat_interleave(I, REPEATS),
]
TAKES_A_NUMBER = [
    lambda: ONE.item(),
    lambda: bool(ONE),
    lambda: int(ONE),
    lambda: float(ONE),
    lambda: complex(ONE),
    lambda: not ONE,
    lambda: ONE and 3,
    lambda: max(ONE, ONE + 1),
    lambda: [5, 6, 7][ONE],
    lambda: [5, 6, 7][ONE:],
    lambda: list(range(ONE)),
    lambda: "%d" % ONE,  # noqa: UP031
    lambda: math.sqrt(ONE),
    lambda: 1 in I,
    lambda: torch.is_nonzero(ONE),
    lambda: X[ONE],
    lambda: X[ONE:],
    lambda: X[:, : I[0]],
    lambda: put(X.clone(), ONE, 0.0),
    lambda: put(X.clone(), slice(ONE, None), 0.0),
    lambda: X.narrow(0, ONE, 1),
    lambda: X.topk(ONE),
    lambda: X.view(ONE * 2, 3),
    lambda: X.reshape(ONE * 2, 3),
    lambda: X.expand(ONE * 2, 3),
    lambda: X.new_zeros((2, ONE)),
    lambda: torch.zeros(ONE),
    lambda: torch.empty((ONE, 2)),
    lambda: torch.full((2,), ONE),
    lambda: torch.arange(ONE),
    lambda: torch.where(MASK),
    lambda: torch.argwhere(MASK),
    lambda: torch.nonzero(MASK),
    lambda: torch.masked_select(X, MASK),
    lambda: X.masked_select(MASK),
    lambda: torch.unique(X),
    lambda: X.unique(),
    lambda: torch.unique_consecutive(X),
    lambda: torch.equal(X, X),
    lambda: X.equal(X),
]
COPIES = [
    lambda: X.cpu(),
    lambda: X.tolist(),
    lambda: X.numpy(),
    lambda: X.to("cpu"),
    lambda: X.to(device="cpu"),
    lambda: X.to("cpu", torch.float64),
    lambda: torch.as_tensor(X, device="cpu"),
    lambda: np.asarray(X),
    lambda: np.exp(X),
    lambda: X.double().cpu().numpy(),
    lambda: HOST.copy_(X[0]),
    lambda: torch.tensor([0.0, 0.0, 0.0]).copy_(X[0]),
    lambda: torch.tensor([ONE]),
    lambda: torch.tensor([[1, 2], [ONE, 4]]),
    lambda: torch.as_tensor([ONE, 2]),
    lambda: X.new_tensor([ONE]),
    lambda: torch.Tensor([ONE]),
    lambda: X[:, [ONE]],
    lambda: X.index_put((MASK,), X[0]),
    lambda: X[:, [True, False, True]],
    lambda: X[:, np.array([True, False, True])],
    lambda: X[:, torch.tensor([1, 0, 1], dtype=torch.uint8).add(0)],
    lambda: torch.allclose(X, X),
    lambda: torch.bincount(I),
    lambda: X.repeat_interleave(REPEATS, 0),
    lambda: F.one_hot(I, num_classes=-1),
    lambda: print(X),
    lambda: repr(X),
    lambda: str(X),
    lambda: f"{X}",
    lambda: f"{ONE:>4}",
    lambda: json.dumps({"logits": X}, default=str),
    lambda: [t.item() for t in I],
    lambda: torch.cpu.synchronize(),
]


def line_of(case):
    return case.__code__.co_firstlineno


@pytest.mark.parametrize("case", TORCH_SAYS_WAITS + TAKES_A_NUMBER + COPIES, ids=line_of)
def test_what_waits_is_refused(case):
    with pytest.raises(ForbiddenSync) as caught, forbid_sync("forward"):
        case()
    inner = case.__code__.co_names  # two cases call a helper of this file: the line is in it
    helper = next((f for f in (put, condition) if f.__name__ in inner), None)
    line = helper.__code__.co_firstlineno + 1 if helper else line_of(case)
    assert caught.value.where == f"tests/test_forbid_sync.py:{line}"
    assert caught.value.sync.text == linecache.getline(__file__, line).strip()


@pytest.mark.parametrize("case", TAKES_A_NUMBER, ids=line_of)
def test_torchs_dispatcher_says_so_too(case):
    with Asked() as asked:
        case()
    assert asked.reads


# ---- what does not ----


def module_step():
    weight = torch.zeros(4, 3)
    return F.gelu(F.layer_norm(F.linear(X, weight), (4,)))


TORCH_SAYS_PASSES = [
    lambda: put(X.clone(), MASK, 1.0),
    lambda: put(X.clone(), I, X.flip(0)),
    lambda: X[I],
    lambda: F.one_hot(I, num_classes=3).shape,
    lambda: torch.randperm(20),
    lambda: torch.repeat_interleave(I, 2, output_size=4),
    lambda: torch.repeat_interleave(I, REPEATS, output_size=4),
    lambda: torch.any(X[0, 0]),
]
HARMLESS = [
    lambda: X + 1 - X * X / 2,
    lambda: X * ONE + ONE,
    lambda: X @ X.T,
    lambda: X == X,
    lambda: (X == X).all(),
    lambda: X.max(),
    lambda: X.argmax(-1),
    lambda: X[0],
    lambda: X[0, 1:],
    lambda: X[-1, ::2],
    lambda: X[:, I],
    lambda: X[..., None],
    lambda: X[:, [0, 2]],
    lambda: X[I, I],
    lambda: X[:, np.array([0, 1])],
    lambda: put(X.clone(), 0, ONE),
    lambda: put(X.clone(), (slice(None), I), 0),
    lambda: X.gather(1, I[:, None]),
    lambda: X.index_select(0, I),
    lambda: X.clone().index_copy_(0, I, X),
    lambda: X.clone().scatter_(1, I[:, None], 0.0),
    lambda: torch.index_select(X, 0, I, out=torch.empty(2, 3)),
    lambda: torch.where(MASK, X, 0.0),
    lambda: X.masked_fill(MASK, -math.inf),
    lambda: X.clone().masked_fill_(MASK, ONE),
    lambda: X.clamp(max=ONE),
    lambda: X.clone().fill_(ONE),
    lambda: X.clone().add_(1).mul_(2),
    lambda: X.clone().copy_(X),
    lambda: X.softmax(-1).cumsum(-1),
    lambda: torch.searchsorted(X, X),
    lambda: X.sort(-1),
    lambda: X.topk(2),
    lambda: X.view(3, 2).flatten().unflatten(0, (2, -1)),
    lambda: X.reshape(X.shape[1], len(X)),
    lambda: X.new_zeros(X.shape),
    lambda: torch.zeros_like(X),
    lambda: torch.zeros(2, 3, dtype=torch.int64, device=X.device),
    lambda: torch.arange(X.shape[0], device=X.device),
    lambda: torch.full((2,), 3),
    lambda: torch.cat([X, X]),
    lambda: torch.stack([X, X]),
    lambda: [row + 1 for row in X],
    lambda: X.unbind(0),
    lambda: X.split(1),
    lambda: (X.shape, X.size(0), X.dim(), X.numel(), len(X), X.dtype, X.device, X.element_size()),
    lambda: f"{X.shape} of {X.dtype}",
    lambda: X.isnan(),
    lambda: X.long(),
    lambda: X.to(torch.float64),
    lambda: X.to(X.device),
    lambda: X.to(I),
    lambda: X.to(X.device, torch.float64),
    lambda: X.data_ptr(),
    lambda: X is not None and id(X),
    lambda: F.embedding(I, X),
    lambda: F.scaled_dot_product_attention(X, X, X),
    lambda: F.dropout(X, 0.5),
    module_step,
]
TO_DEVICE = [
    lambda: torch.from_numpy(np.arange(3)).to("cpu"),
    lambda: torch.from_numpy(np.arange(3)).to(X.device),
    lambda: torch.from_numpy(np.arange(4))[1:].to("cpu"),
    lambda: torch.tensor([1, 2]).to("cpu"),
    lambda: torch.tensor([1, 2], device="cpu"),
    lambda: torch.tensor(np.arange(3)).to("cpu"),
    lambda: torch.as_tensor([1, 2]).to("cpu", torch.float32),
    lambda: torch.as_tensor(np.arange(3), device=X.device),
    lambda: X.clone().copy_(torch.from_numpy(np.zeros((2, 3)))),
    lambda: torch.tensor([1, 2]).tolist(),
    lambda: torch.tensor(-1.0).numpy(),
    lambda: np.arange(3).tolist(),
    lambda: X.to("cpu", non_blocking=True),
    lambda: HOST.copy_(X[0], non_blocking=True),
]


@pytest.mark.parametrize("case", TORCH_SAYS_PASSES + HARMLESS + TO_DEVICE, ids=line_of)
def test_what_does_not_wait_passes(case):
    with forbid_sync():
        case()


@pytest.mark.parametrize("case", HARMLESS, ids=line_of)
def test_torchs_dispatcher_agrees(case):
    with Asked() as asked:
        case()
    assert not asked.reads


def test_a_tensor_that_was_sent_off_is_the_devices():
    with forbid_sync():
        sent = torch.tensor([1, 2]).to("cpu")
        with pytest.raises(ForbiddenSync):
            sent.tolist()
        same = torch.as_tensor(X)
        with pytest.raises(ForbiddenSync):
            same.tolist()


def test_with_an_accelerator_the_place_of_a_tensor_decides():
    guard = forbid_sync("forward", device="mps")  # no such device is needed to ask
    far = torch.empty(3, device="meta")  # stands for one that is not on the host
    with guard:
        assert X.tolist() and bool(ONE) and X.cpu() is X
        for wait in (far.cpu, far.tolist, lambda: far.to("cpu"), lambda: X[0].copy_(far)):
            with pytest.raises(ForbiddenSync):
                wait()


# ---- what it says ----


def test_the_message_names_phase_call_line_and_remedy():
    with pytest.raises(ForbiddenSync) as caught, forbid_sync("sample"):
        token = X.argmax().item()  # noqa: F841
    error, line = caught.value, caught.tb.tb_lineno
    assert isinstance(error, RuntimeError)
    assert (error.phase, error.what) == ("sample", ".item()")
    assert str(error) == (
        f"sample: .item() waits for the device, at tests/test_forbid_sync.py:{line}: "
        "`token = X.argmax().item()  # noqa: F841`. Keep it on the device, or read it after the "
        "launch."
    )


def test_the_line_is_the_callers_not_a_librarys():
    def learner(x):
        rows = [
            x[0],
            np.maximum(x[0], 0),
        ]
        return rows

    with pytest.raises(ForbiddenSync) as caught, forbid_sync():
        learner(X)
    assert caught.value.sync.line == learner.__code__.co_firstlineno + 3
    assert "np.maximum" in str(caught.value)


def test_a_notebooks_cell_is_called_one():
    file, code = "/tmp/ipykernel_7/1234.py", "def f(x):\n    y = x + 1\n    return y.sum().item()\n"
    linecache.cache[file] = (len(code), None, code.splitlines(True), file)
    space = {"__name__": "__main__"}
    exec(compile(code, file, "exec"), space)
    with pytest.raises(ForbiddenSync, match=r"at cell:3: `return y\.sum\(\)\.item\(\)`"):
        with forbid_sync():
            space["f"](X)
    del linecache.cache[file]


def test_code_without_a_file_has_a_line_all_the_same():
    with pytest.raises(ForbiddenSync, match=r"at <string>:2\. Keep"), forbid_sync():
        exec("y = 1\nx.item()", {"x": ONE})


# ---- on and off ----


def nothing_is_left():
    return torch._C._len_torch_function_stack() == 0 and (
        torch.cpu.synchronize.__module__ == torch.cuda.synchronize.__module__.replace("cuda", "cpu")
    )


def test_off_nothing_of_it_is_left():
    before = torch.cpu.synchronize, torch.cuda.synchronize, torch.Tensor.item
    for _ in range(2):
        with pytest.raises(ForbiddenSync), forbid_sync():
            ONE.item()
        assert (torch.cpu.synchronize, torch.cuda.synchronize, torch.Tensor.item) == before
        assert nothing_is_left() and ONE.item() == 1


def test_an_error_of_the_callers_own_goes_through_and_ends_it():
    with pytest.raises(ZeroDivisionError), forbid_sync():
        1 / 0  # noqa: B018
    with pytest.raises(RuntimeError, match="shapes"), forbid_sync():
        X @ X
    assert nothing_is_left()


def test_nested_guards_and_the_same_one_again():
    guard = forbid_sync("outer")
    with guard:
        with forbid_sync("inner"), pytest.raises(ForbiddenSync, match="^inner"):
            ONE.item()
        with guard, pytest.raises(ForbiddenSync, match="^outer"):
            ONE.item()
        with pytest.raises(ForbiddenSync, match="^outer"):
            ONE.item()
        with pytest.raises(ForbiddenSync, match="^outer"):
            torch.cpu.synchronize()
    assert nothing_is_left()
    with pytest.raises(ForbiddenSync), guard:
        ONE.item()


def test_it_guards_one_thread_alone():
    found = []

    def other():
        found.append(ONE.item())
        torch.cpu.synchronize()
        try:
            with forbid_sync("theirs"):
                ONE.item()
        except ForbiddenSync as error:
            found.append(error.phase)

    with forbid_sync("ours"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        with pytest.raises(ForbiddenSync, match="^ours"):
            ONE.item()
    assert found == [1, "theirs"] and nothing_is_left()


def test_threads_that_come_and_go_leave_nothing_behind():
    def work():
        for _ in range(50):
            with pytest.raises(ForbiddenSync), forbid_sync():
                torch.cpu.synchronize()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nothing_is_left()


def test_a_thread_that_is_killed_while_it_takes_hold_takes_no_guard_away(monkeypatch):
    before = torch.cpu.synchronize, torch.cuda.synchronize

    def killed():
        yield torch.cpu
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(BARRIERS, "owners", killed())
        with pytest.raises(SystemExit):
            BARRIERS.hold()
    for _ in range(2):
        with pytest.raises(ForbiddenSync), forbid_sync():
            torch.cpu.synchronize()
    assert (torch.cpu.synchronize, torch.cuda.synchronize) == before


def test_it_may_look_now_and_then():
    guard, seen = forbid_sync(every=4), []
    for entry in range(13):
        try:
            with guard:
                ONE.item()
        except ForbiddenSync:
            seen.append(entry)
    assert seen == [0, 1, 2, 3, 4, 8, 12] and nothing_is_left()
    with pytest.raises(ValueError, match=r"every=0 must be an integer, 1 or more"):
        forbid_sync(every=0)


def test_an_error_of_torchs_own_debug_mode_is_told_with_its_line():
    def learner():
        raise RuntimeError("called a synchronizing CUDA operation")

    with pytest.raises(ForbiddenSync) as caught, forbid_sync("forward"):
        learner()
    assert caught.value.sync.line == learner.__code__.co_firstlineno + 1


def test_a_wait_can_be_allowed_and_is_counted():
    outer, inner = forbid_sync("outer"), forbid_sync("inner")
    with outer, inner:
        with allow_sync("a mask needs the draft before it"):
            assert ONE.item() == 1 and X.tolist()
            with forbid_sync("closer"), pytest.raises(ForbiddenSync, match="^closer"):
                ONE.item()
        with pytest.raises(ForbiddenSync, match="^inner"):
            ONE.item()
    assert inner.allowed == outer.allowed == {"a mask needs the draft before it": 2}
    with allow_sync("outside of a guard it does nothing"):
        assert ONE.item() == 1


def test_an_allowance_ends_with_an_exception():
    with forbid_sync():
        with pytest.raises(ZeroDivisionError), allow_sync("for a while"):
            1 / 0  # noqa: B018
        with pytest.raises(ForbiddenSync):
            ONE.item()


# ---- in the engine ----


def engine(**config):
    made = g.Engine(random_lm(), g.EngineConfig(num_blocks=64, block_size=4, **config))
    for i in range(5):
        made.add([1 + i, 2, 3] * (1 + i), g.SamplingParams(max_tokens=8, seed=i, top_p=0.9))
    return made


def test_the_engines_forward_passes_and_a_stray_item_in_it_is_found(monkeypatch):
    ours = engine()
    step = ours._begin()
    with forbid_sync("forward"):
        batch = ours._batch(step)
        logits = ours._forward(batch)
    assert logits.shape == (5, 300)

    feed_forward = Block.feed_forward

    def clipped(self, x):
        if x.shape[0] > 1:
            largest = x.abs().max().item()
            x = x.clamp(-largest, largest)
        return feed_forward(self, x)

    monkeypatch.setattr(Block, "feed_forward", clipped)
    with pytest.raises(ForbiddenSync) as caught, forbid_sync("forward"):
        ours._forward(batch)
    assert caught.value.sync == (
        ".item()",
        f"tests/{Path(__file__).name}",
        clipped.__code__.co_firstlineno + 2,
        "largest = x.abs().max().item()",
    )


def test_a_forward_computes_the_same_inside():
    ours = engine()
    batch = ours._batch(ours._begin())
    plain = ours._forward(batch)
    with forbid_sync():
        guarded = ours._forward(batch)
    assert torch.equal(plain, guarded)
