"""Notebooks with a model of your own in the place of `tiny`: random weights in the shapes of the
parent course's smallest models, whose context is shorter and whose tokenizer has no thoughts."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import course_files
import pytest
import torch
from course_files import SHAPES
from notebook_session import PROBE, Session

import g2c_serving as g
from g2c_serving.lab import (
    conversation,
    held_out,
    own_budget,
    own_model,
    promoting,
    restart,
    speculation_speed,
)
from g2c_serving.lab.render import code_cells
from g2c_serving.paths import NOTEBOOKS

STORY, SHAKESPEARE = "StoryLM-1M-base", "ShakespeareLM-1M-base"
USING = [path for path in sorted(NOTEBOOKS.glob("*.ipynb")) if 'g.load(\\"tiny\\")' in
         path.read_text(encoding="utf-8")]  # fmt: skip
GREEDY = g.SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    """Both models, and for each a smaller one of the same tokenizer, to draft."""
    root = tmp_path_factory.mktemp("artifacts")
    for name in (STORY, SHAKESPEARE):
        course_files.write(root, name)
        small = dataclasses.replace(SHAPES[name], num_layers=1, embedding_dim=64, num_heads=2)
        course_files.write(root, f"Small-{name}", small, seed=1)
    return root


def loaded(root: Path, name: str = STORY) -> g.LanguageModel:
    return g.load(root / "models" / name)


def greedy(lm: g.LanguageModel, ids: list[int]) -> list[int]:
    return g.Engine(lm, g.EngineConfig(num_blocks=64)).generate([ids], GREEDY)[0].token_ids


def test_tiny_has_all_that_the_pages_need(capsys):
    lm = g.load("tiny")
    assert own_model.roomy(lm) is lm and own_model.with_thoughts(lm) is lm
    assert [own_model.share(lm, n) for n in (1, 40, 448)] == [1, 40, 448]
    assert capsys.readouterr().out == ""


def test_a_longer_context_is_made_up(root, capsys):
    """Within its own context the model writes what it wrote; beyond, its positions come again."""
    lm = loaded(root)
    longer = own_model.roomy(lm)
    assert "needs a context of 512 tokens, StoryLM-1M-base has 256" in capsys.readouterr().out
    assert longer.config.max_seq_len == 512 and own_model.roomy(lm) is longer
    assert greedy(longer, [72] * 30) == greedy(lm, [72] * 30)
    assert len(greedy(longer, [72] * 450)) == 12
    rows = longer.weights["pos_embed.weight"]
    assert torch.equal(rows[256:], rows[:256])
    assert own_model.roomy(lm, 200) is lm
    assert own_model.roomy(lm, 600).config.max_seq_len == 600
    assert own_model.share(lm, 448) == 224 and own_model.share(lm, 1) == 1


def test_a_model_is_called_by_its_own_name_and_weight(root):
    """1,000,000 bytes a MB, four bytes a number; half of that in bfloat16."""
    assert own_model.weighed(g.load("tiny")) == "tiny, 14 MB"
    lm = loaded(root)
    assert own_model.weighed(lm) == f"{STORY}, {4 * lm.num_parameters / 1e6:.0f} MB"


def test_a_model_that_is_large_already_is_not_inflated(root, capsys):
    """The pages that compare `lm` with its inflated self have one model then, and one line."""
    lm, drafter = loaded(root), loaded(root, f"Small-{STORY}")
    size = sum(t.numel() for t in lm.weights.values()) * 4 / 1e6
    assert g.inflate(lm, size / 2) is lm
    assert capsys.readouterr().out.startswith(f"{STORY} takes {size:,.0f} MB")
    assert g.inflate(lm, size + 1) is not lm and not capsys.readouterr().out
    assert len(own_budget.row_prices([lm, lm], rows=(1, 2)).rows) == 1
    speeds = speculation_speed.measure([lm, lm], drafter, loads=(1,), seconds=0.1)
    assert [s.mode for s in speeds] == ["off", "fixed", "budgeted"]
    assert len(speculation_speed.findings(speeds).splitlines()) == 2


def test_thoughts_are_added_behind_the_last_token(root, capsys):
    """No text gives them, the model never writes them, and all else stays as it was."""
    lm = loaded(root)
    more = own_model.with_thoughts(lm)
    assert "has no <think> and </think>" in capsys.readouterr().out
    assert (more.vocab_size, more.tokenizer.vocab_size) == (4098, 4098)
    assert more.tokenizer.reserved == lm.tokenizer.reserved | {"<think>": 4096, "</think>": 4097}
    text = "a <think> b </think>"
    assert more.tokenizer.encode(text) == lm.tokenizer.encode(text)
    assert more.tokenizer.visible_text([65, 4096, 257, 66]) == "AB"
    assert more.tokenizer.decode([65, 4096]) == "A<think>"
    assert greedy(more, [72, 73, 74]) == greedy(lm, [72, 73, 74])
    prompt = g.chat([{"role": "user", "content": "Hi"}], think=True)
    out = g.Engine(more).generate([prompt], g.SamplingParams(max_tokens=200, seed=1))[0]
    assert not {4096, 4097} & set(out.token_ids) and out.reasoning
    drafter = loaded(root, f"Small-{STORY}")
    speculation = g.Speculation("fixed", 3, drafter)
    drafted = g.Engine(more, g.EngineConfig(num_blocks=64, speculation=speculation))
    assert drafted.generate([[72, 73, 74]], GREEDY)[0].token_ids == greedy(lm, [72, 73, 74])


@pytest.mark.parametrize("name", [STORY, SHAKESPEARE])
def test_texts_are_cut_to_what_the_model_sees(root, name, capsys):
    lm, limit = loaded(root, name), SHAPES[name].max_seq_len
    engine = g.Engine(lm, conversation.config(caching=True))
    turns = conversation.talk(engine)
    assert 2 <= len(turns) < 10 and all(len(turn.ids) < limit for turn in turns)
    assert f"{name} sees {limit} tokens" in capsys.readouterr().out
    assert len(restart.prompt(lm)) < limit
    rows = held_out.held_out_rows(lm, 2, 40)
    assert rows.shape == (2, 41) and rows.max() < lm.vocab_size
    assert {len(ids) for ids in held_out.held_out_prompts(lm, 4)} == {24}


def test_the_courses_vocabulary_stays_as_it_is(root):
    tokenizer = loaded(root).tokenizer
    again = promoting.course_vocabulary(tokenizer)
    assert again.reserved == tokenizer.reserved and again.merges == tokenizer.merges


@pytest.mark.slow
@pytest.mark.parametrize("name", [STORY, SHAKESPEARE])
@pytest.mark.parametrize("path", USING, ids=lambda path: path.stem)
def test_a_notebook_runs_with_a_model_of_your_own(root, path, name):
    """Every cell, and every control of its panels at its ends."""
    folders = {"tiny": root / "models" / name, "tiny-drafter": root / "models" / f"Small-{name}"}
    with Session(path) as session:
        first = next(code_cells(session.notebook))
        for shipped, folder in folders.items():
            first.source = first.source.replace(f'g.load("{shipped}")', f"g.load(r'{folder}')")
        for place, cell in enumerate(session.notebook.cells):
            if cell.cell_type == "code":
                session._run(place)
        said = session._ask("_gone = {}" + PROBE.replace("FORMER", "set()")).splitlines()
    answer = next(line for line in said if line.startswith('{"moves"'))  # beside fonts' warnings
    faults = [move for move in json.loads(answer)["moves"] if move["error"] != "''"]
    assert not faults, faults
