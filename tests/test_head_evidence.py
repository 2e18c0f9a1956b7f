"""The drafter's head on held-out texts: evidence from a real engine, and its errors in a table."""

from __future__ import annotations

import torch

import g2c_serving as g
from g2c_serving.lab import head_evidence
from g2c_serving.lab.reliability import Evidence


def test_evidence_is_of_the_engine():
    torch.set_num_threads(1)
    lm, drafter = g.load("tiny"), g.load("tiny-drafter")
    found = head_evidence.evidence(lm, drafter, requests=4)
    assert isinstance(found, Evidence) and (found.verified == 5).all()
    assert 0.5 < found.accepted.mean() / 5 <= 1
    assert len(head_evidence.errors({1.0: found}).rows) == 2


def test_two_sections_of_a_page_share_one_run(monkeypatch):
    """The same models at the same temperature run once; other models, and other temperatures, on
    their own."""
    lm, drafter = g.load("tiny"), g.load("tiny-drafter")
    made = []
    engine = head_evidence.Engine
    monkeypatch.setattr(head_evidence, "Engine", lambda *how: made.append(how) or engine(*how))
    first = head_evidence.evidence(lm, drafter, requests=2)
    assert head_evidence.evidence(lm, drafter, 1.0, 2) is first and len(made) == 1
    assert head_evidence.evidence(lm, drafter, 0.5, 2) is not first
    assert head_evidence.evidence(g.load("tiny"), drafter, 1.0, 2) is not first and len(made) == 3
