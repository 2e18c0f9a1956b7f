"""The panels about experts: every control moves them, and what they say at known settings."""

from __future__ import annotations

import numpy as np
import pytest
from panels import each_control_moves

from g2c_serving.cluster.experts import popularity
from g2c_serving.lab import combine_panel, expert_grid, expert_loads, expert_panels, wide_ep_panel
from g2c_serving.lab.expert_grid import COPIES, DRAWS
from g2c_serving.lab.published import value

PANELS = (
    expert_loads.panel,
    expert_panels.copies_panel,
    expert_panels.drift_panel,
    wide_ep_panel.panel,
    combine_panel.panel,
)


@pytest.mark.parametrize("panel", PANELS)
def test_every_control_moves_the_sentence_and_the_picture(panel):
    each_control_moves(panel)


# ---- copies ----


@pytest.mark.parametrize("at", [(0.8, 64, 0.5, 256), (1.4, 8, 0.0, 8), (0.0, 128, 4.0, 1024)])
def test_the_kept_balances_are_those_of_the_simulation(at):
    known, later = expert_grid.find_copies(*at)
    assert np.abs(known - expert_grid.known_balances(*at[:2])).max() < 0.0006
    assert np.abs(later - expert_grid.later_balances(*at)).max() < 0.0006


def test_an_interval_later_begins_with_the_load_that_was_known():
    now = popularity(expert_grid.EXPERTS, 0.8, seed=3)[0]
    assert np.allclose(expert_grid.popularity_after(0.8, 0.0, 3), now)


def test_few_copies_do_in_every_draw_where_the_load_is_known():
    known, _ = expert_grid.find_copies(0.8, 64, 0.5, 256)
    assert known.shape == (len(COPIES), DRAWS) and np.median(known[0]) > 1.9
    assert expert_panels.copies_needed(known).max() <= 8


def test_drift_takes_many_more_and_enough_copies_share_it_out():
    needed = [
        expert_panels.copies_needed(expert_grid.find_copies(0.8, 64, drift, 256)[1])
        for drift in (0.0, 0.5, 1.0, 4.0)
    ]
    assert needed[0].max() <= 8 < 64 <= needed[1].min() and needed[1].max() <= 256
    assert needed[2].min() >= 256 and np.isinf(needed[3]).sum() > DRAWS / 2


def test_copies_share_out_the_chance_of_a_step_as_well():
    """No drift. In even shares, too: chance makes 1.05 there, and copies make it less."""
    for skew in (0.0, 0.8):
        _, later = expert_grid.find_copies(skew, 64, 0.0, 256)
        some, most = later[COPIES.index(8)], later[-1]
        assert some.min() > 1.03 and most.max() < 1.03
        assert (most < some).all()
    _, few_tokens = expert_grid.find_copies(0.8, 64, 0.0, 8)
    assert few_tokens.min() > value("lb.moe")


def test_what_is_said_of_draws():
    balances = np.full((len(COPIES), DRAWS), 2.0)
    assert expert_panels.reached(balances).endswith("is not reached")
    assert expert_panels.reached(balances - 1) == "that is within the reported 1.090"
    balances[3:] = 1.0
    balances[2, :2] = 1.0
    balances[:, 7] = 2.0
    expected = "takes 4 copies (2 to more than 1,024)"
    assert expert_panels.reached(balances).endswith(expected)
    assert expert_panels.spread(np.array([3.0, 1, 2])) == "2.00 (1.00 to 3.00)"


def test_the_band_goes_from_the_lowest_draw_to_the_highest():
    shown = expert_panels.copies_panel()
    known, later = expert_grid.find_copies(0.8, 64, 0.5, 256)
    for (curve, band), balances in zip(shown.artists["lines"], (known, later), strict=True):
        assert curve.get_ydata().tolist() == np.median(balances, 1).tolist()
        corners = band.get_xy()[:-1, 1]  # closed by its first
        assert corners[: len(COPIES)].tolist() == balances.min(1).tolist()
        assert corners[len(COPIES) :][::-1].tolist() == balances.max(1).tolist()


# ---- drift ----


@pytest.mark.parametrize("at", [(1.0, 64, 8, 8), (4.0, 0, 16, 32)])
def test_the_kept_runs_are_those_of_the_simulation(at):
    found = expert_grid.find_drift(*at)
    drift, copies, every, swaps = at
    now = {
        "once": expert_grid.over_time(drift, copies, expert_grid.NEVER),
        "near": expert_grid.over_time(drift, copies, every, swaps),
        "anew": expert_grid.over_time(drift, copies, every),
    }
    for name, numbers in now.items():
        assert np.abs(found[name] - numbers).max() < 0.0006


def test_popularities_that_stay_need_one_placement():
    found = expert_grid.over_time(0.0, 64, 16)
    assert (found[:-1] == found[0]).all() and (found[-1] == 0).all()
    near = expert_grid.over_time(0.0, 64, 16, 8)
    assert (near[-2] <= near[0]).all() and (near[0] == found[0]).all()


def run_means(*at) -> dict[str, np.ndarray]:
    """Of each draw (DRAWS,)."""
    return {name: found[:-1].mean(0) for name, found in expert_grid.find_drift(*at).items()}


def test_swaps_lose_little_and_move_few():
    """In every draw; and every way is better than to leave the experts where they are."""
    found, means = expert_grid.find_drift(1.0, 64, 2, 8), run_means(1.0, 64, 2, 8)
    assert (means["anew"] < means["near"]).all() and (means["near"] < means["anew"] + 0.05).all()
    assert (means["near"] < means["once"] - 0.2).all()
    assert (found["near"][-1] < 0.1 * 320).all() and (found["anew"][-1] > 0.9 * 320).all()


def test_where_1_090_is_reached():
    """Not at this drift, however often; at a quarter of it, in every draw."""
    for every in expert_grid.EVERY:
        means = run_means(1.0, 64, every, 32)
        assert min(means["anew"].min(), means["near"].min()) > value("lb.moe")
    means = run_means(0.25, 64, 1, 8)
    assert max(means["anew"].max(), means["near"].max()) < value("lb.moe")


# ---- the others ----


def test_the_bars_are_the_gpus_loads():
    """Against the sums of the experts that the picture stacks; 13.0 experts are 1.63 GPUs."""
    shown = expert_loads.panel()
    shown.controls["copies"].value = 16
    tops = np.zeros(expert_loads.GPUS)
    for name in ("single", "copied"):
        corners = shown.artists[name].get_path().vertices.reshape(-1, 5, 2)
        for box in corners:
            tops[round(box[0, 0] + 0.4)] += box[2, 1] - box[0, 1]
    assert tops.mean() == pytest.approx(1) and (np.diff(tops) < 1e-9).all()
    assert f"carries {tops.max():.3f} times the average" in shown.text
    assert "13.0 times an expert's average" in shown.text


def balances(copies: int) -> list[float]:
    """What the panel says of each draw."""
    shown = expert_loads.panel()
    shown.controls["copies"].value = copies
    found = []
    for draw in range(1, DRAWS + 1):
        shown.controls["draw"].value = draw
        found.append(float(shown.text.split("GPUs carries ")[1].split()[0]))
    return found


def test_draws_with_one_popular_expert_with_two_and_with_none():
    """At the start a copy levels the bars; in two of the eight draws they were level, in two others
    a second expert stands out."""
    without, with_one = balances(0), balances(1)
    assert without[0] > 1.5 and with_one[0] < 1.005
    assert sum(balance < 1.01 for balance in without) == 2
    assert sum(balance > 1.1 for balance in with_one) == 2
    shown = expert_loads.panel()
    shown.controls["how"].value = expert_loads.UNPLANNED
    assert "carries 2.106 times the average" in shown.text


def test_what_a_gpu_reads():
    """137 GB of experts on 64 GPUs are 2.1 each, and 6 beside them; on 2, half of all."""
    shown = wide_ep_panel.panel()
    assert "on 64 GPUs each reads 8.1 GB a step, 2.1 of them experts, 1.0 ms" in shown.text
    read, held = (shown.artists[name].get_ydata() for name in ("read", "held"))
    assert np.allclose(read, held, rtol=0.02) and read[0] - 6 == pytest.approx(137 / 2, rel=0.03)
    assert read[-1] > 0.8 * read[-2]  # from 64 to 128
    shown.controls["tokens"].value = 1
    assert "1 token per GPU and step" in shown.text
    read, held = (shown.artists[name].get_ydata() for name in ("read", "held"))
    assert read[0] < 0.3 * held[0]


def test_whose_bits_change():
    """Only tokens with an expert that moved, if each GPU adds up first; none in a fixed order."""
    for dtype in combine_panel.DTYPES:
        arrival, gpu, expert = (combine_panel.both(rule, 3, dtype) for rule in combine_panel.RULES)
        assert not arrival.all_equal and not gpu.all_equal and expert.all_equal
        assert (gpu.changed[~gpu.touched] == 0).all() and (gpu.changed[gpu.touched] > 0).any()
        assert gpu.vectors < expert.vectors == combine_panel.CHOSEN
        assert combine_panel.both("each GPU first, then GPU after GPU", 0, dtype).all_equal


def test_what_the_words_say_of_two_experts_that_move():
    """Some of the tokens that have one change, in the last digits; as they arrive, all do."""
    found = combine_panel.both("each GPU first, then GPU after GPU", 2, "float32")
    assert 0 < (found.changed > 0).sum() < found.touched.sum() and found.changed.max() < 1e-6
    assert (combine_panel.both("as they arrive", 0, "float32").changed > 0).all()


def test_training_and_serving_are_told_apart():
    table = expert_panels.training_and_serving()
    assert "auxiliary loss" in repr(table) and "placement" in repr(table)
