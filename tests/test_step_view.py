"""The picture of one engine step: who waits, runs, has finished, worked out by hand."""

from __future__ import annotations

import fakes
import pytest
from small_models import random_lm

from g2c_serving.lab import step_view, workload
from g2c_serving.lab.workload import Arrival


@pytest.fixture(scope="module")
def found():
    """Two seats, six tokens a step. Prompts of 8, 2 and 2 tokens; answers of 2, 3 and 1."""
    made = [Arrival(0, (1,) * 8, 2), Arrival(0, (2, 2), 3), Arrival(1, (3, 3), 1)]
    return workload.run(fakes.engine(max_num_seqs=2, max_num_batched_tokens=6), made)


@pytest.mark.parametrize(
    "step, waiting, rows, finished",
    [
        (1, [1], [(0, "prefill", 6)], []),
        (2, [2], [(0, "prefill", 2), (1, "prefill", 2)], []),
        (3, [2], [(0, "decode", 1), (1, "decode", 1)], [0]),
        (4, [], [(1, "decode", 1), (2, "prefill", 2)], [0, 1, 2]),
    ],
)
def test_moments(found, step, waiting, rows, finished):
    now = step_view.moment(found, step)
    assert now.waiting == waiting
    assert [(row.request_id, row.kind, row.num_tokens) for row in now.rows] == rows
    assert sorted(now.finished) == finished
    assert now.num_tokens == sum(row[2] for row in rows)


@pytest.fixture(scope="module")
def panel():
    return step_view.panel(random_lm(vocab_size=266, context=512))


def test_at_the_end_all_eight_have_finished(panel):
    panel.controls["step"].value = panel.controls["step"].ends[1]
    assert panel.text.endswith("8 finished.") and " 0 waiting" in panel.text


def test_no_step_has_more_tokens_or_rows_than_it_may(panel):
    for step in range(1, panel.controls["step"].ends[1] + 1):
        panel.controls["step"].value = step
        assert panel.error is None
        cells = panel.artists["prefill"].get_path().vertices, panel.artists["decode"].get_path()
        tokens = (len(cells[0]) + len(cells[1].vertices)) // 5
        assert 1 <= tokens <= step_view.STEP_TOKENS
        assert f": {tokens} tokens" in panel.artists["title"].get_text()


def test_a_request_shows_its_prompt_s_progress_then_its_text(found):
    lm = random_lm(vocab_size=266, context=512)
    example = step_view.example_run(lm)
    (row,) = [r for r in example.steps[0].rows if r.request_id == 0]
    prompt = len(lm.tokenizer.encode(step_view.PROMPTS[0][1]))
    assert prompt > row.num_tokens == step_view.STEP_TOKENS
    assert step_view.words_after(lm, example, row, 1) == f"24 of {prompt} prompt tokens"
    last = example.steps[-1]
    words = step_view.words_after(lm, example, last.rows[0], len(example.steps))
    assert words.startswith("\u2026") and words.isprintable()
