"""The probe of a machine: it finds what differs, and where a mode does not hold it says so."""

from __future__ import annotations

import pytest
import torch
from small_models import random_lm

from g2c_serving.forward.batch_invariance import BatchInvariant
from g2c_serving.lab.invariance_probe import CHUNKS, COMPANY, probe


@pytest.mark.parametrize(
    "threads", [(1,), pytest.param((1, 2, 3, 7), marks=pytest.mark.slow)], ids=str
)
def test_the_report(threads: tuple[int, ...]) -> None:
    """Right values: the counts of what is compared; the mode's own tests say that it holds."""
    report = probe(random_lm(context=80), threads, length=40)
    assert report.holds and tuple(held.threads for held in report.results) == threads
    for held in report.results:
        assert (held.invariant.of_company, held.invariant.of_chunks) == (sum(COMPANY), 120)
        assert len(CHUNKS) == 3
        assert held.query_sizes and held.row_sizes
    assert torch.get_num_threads() == 1
    assert "1 thread, batch_invariant=True" in repr(report)
    assert f"0 of {sum(COMPANY)}" in report._repr_markdown_()


def test_where_it_does_not_hold_the_report_says_so(monkeypatch) -> None:
    """With kernels whose last bits depend on the number of rows."""

    def by_company(self, function, *tensors):
        return function(*tensors) * (1 + 1e-6 * len(tensors[0]))

    monkeypatch.setattr(BatchInvariant, "rows", by_company)
    report = probe(random_lm(context=80), threads=(1,), length=40)
    [held] = report.results
    assert not report.holds and held.invariant.in_company == sum(COMPANY)


@pytest.mark.parametrize("length", [15, 64])
def test_a_length_that_does_not_fit(length: int) -> None:
    with pytest.raises(ValueError, match=f"length={length} must be from 16 to 63"):
        probe(random_lm(), length=length)
