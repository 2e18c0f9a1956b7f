"""Two readings of an acceptance, implied step times, and what cannot be derived."""

from __future__ import annotations

import numpy as np
import pytest
from panels import each_control_moves

import g2c_serving as g
from g2c_serving.history import Drafted, StepRecord
from g2c_serving.lab import acceptance_trace, accepted_length, implied_steps, tokens_a_day
from g2c_serving.lab.acceptance_trace import Trace, trace
from g2c_serving.lab.accepted_length import chance_behind, tau, tau_gap, world
from g2c_serving.lab.held_out import held_out_prompts

# ---- tau ----


def test_the_two_readings_by_hand():
    assert tau("share") == 3.25 and tau("chance") == 1 + 0.75 + 0.5625 + 0.421875
    assert tau_gap() == pytest.approx(15.865, abs=0.001)  # about 16 %
    with pytest.raises(ValueError, match="reading 'odds' must be share or chance"):
        tau("odds")


def passes(accepted: list[int], drafts: int, verified: int | None = None) -> list[StepRecord]:
    """A history, one request a pass."""
    checked = drafts if verified is None else verified
    found = []
    for k, n in enumerate(accepted):
        one = Drafted(k, 0, 9, (1,) * drafts, (0.5,) * drafts, checked, n, 7, n + 1)
        found.append(StepRecord(0.0, drafts=[one]))
    return found


def test_a_trace_by_hand():
    """Two drafts a pass: none stands, one, both, both. 5 of 8 stand; of the 4 + 3 whose turn came,
    5; four passes wrote 4 + 5 tokens."""
    one = trace(passes([0, 1, 2, 2], 2))
    assert one.stood == (4, 3, 2) and one.drafts == 2
    assert (one.share, one.chance, one.tokens) == (5 / 8, 5 / 7, 9 / 4)
    assert one.chances == [3 / 4, 2 / 3] and one.kept == 9 and one.first(2) is one
    assert one.first(1) == Trace((4, 3)) and one.first(1).share == one.first(1).chance == 3 / 4


def test_the_share_belongs_to_one_formula_and_the_chance_to_the_other():
    """Whatever the pattern 1 + n a is exact for the share. 20,000 passes of drafts that stand with
    0.7 each: the chance comes out, and 1 + a + a^2 + ... gives what was counted."""
    rng = np.random.default_rng(8)
    for chances in ([0.7] * 4, [0.95, 0.4, 0.9, 0.2]):
        stands = (rng.random((20_000, 4)) < chances).cumprod(axis=1)
        one = trace(passes(stands.sum(1).tolist(), 4))
        assert one.share == pytest.approx(stands.mean())
        assert one.tokens == pytest.approx(1 + stands.sum(1).mean()) == 1 + 4 * one.share
    alike = trace(passes((rng.random((20_000, 4)) < 0.7).cumprod(axis=1).sum(1).tolist(), 4))
    assert alike.chance == pytest.approx(0.7, abs=0.01)
    assert alike.tokens == pytest.approx(1 + 0.7 + 0.49 + 0.343 + 0.2401, abs=0.05)
    assert sum(alike.share**i for i in range(5)) < 0.85 * alike.tokens  # the wrong formula


def test_the_trace_of_a_real_run_is_what_the_engine_counts():
    lm, drafter = g.load("tiny"), g.load("tiny-drafter")
    engine = g.Engine(lm, g.EngineConfig(speculation=g.Speculation("fixed", drafter=drafter)))
    params = [g.SamplingParams(16, temperature=1.5, seed=seed) for seed in range(4)]
    engine.generate(held_out_prompts(lm, 4), params)
    one, stats = trace(engine.history), engine.stats
    assert one.drafts == 5 and one.stood[0] == stats.passes
    assert one.share == pytest.approx(stats.acceptance_rate)
    assert one.tokens == pytest.approx(1 + stats.accepted_length)
    assert one.chance >= one.share
    assert one.got == stats.tokens_per_pass < one.tokens  # the last passes write past the end


def test_the_kept_tokens_are_those_of_the_outputs():
    """All but the first token of each request, which no drafts go before; and with nobody at an
    end all that a pass writes is kept."""
    lm, drafter = g.load("tiny"), g.load("tiny-drafter")
    engine = g.Engine(lm, g.EngineConfig(speculation=g.Speculation("fixed", drafter=drafter)))
    params = [g.SamplingParams(40, seed=seed, ignore_eos=True) for seed in range(4)]
    outputs = engine.generate(held_out_prompts(lm, 4), params)
    written = sum(len(output.token_ids) for output in outputs)
    whole = trace(engine.history)
    assert whole.kept == written - 4
    early = trace(list(engine.history)[:5])
    assert early.got == early.tokens


def test_budgeted_runs_are_refused_as_the_plotting_code_does():
    mixed = passes([1, 2], 3, verified=3) + passes([1], 3, verified=1)
    with pytest.raises(ValueError, match='1 to 3 drafts were verified.*Take Speculation."fixed"'):
        trace(mixed)
    with pytest.raises(ValueError, match="history has no drafts: run an engine"):
        trace([StepRecord(0.0)])
    with pytest.raises(ValueError, match="0 to 0 drafts were verified"):
        trace(passes([0], 3, verified=0))
    with pytest.raises(ValueError, match="drafts=4: the trace has 2"):
        Trace((4, 3, 2)).first(4)


TRACES = {"easy": Trace((100, 98, 97, 95)), "hard": Trace((100, 70, 40, 20))}


def test_the_panel_of_traces():
    panel = acceptance_trace.panel(TRACES)
    assert "3 drafts, 100 passes: 3.90 tokens a pass." in panel.text
    panel.controls["run"].value = "hard"
    assert "43.3% of the drafts stand, and 1 + n a makes 2.30 of that" in panel.text
    assert "they stand with 70.0, 57.1, 50.0%, together 61.9%" in panel.text  # 130 of 210
    panel.controls["drafts"].value = 1
    assert panel.text.startswith("Of the 3 drafts only the first taken: 1.70 tokens a pass, had no")
    assert "share and chance are one" in panel.text and "0% less" not in panel.text
    kept = acceptance_trace.panel({"all": Trace((100, 98, 97, 95), kept=380)})
    assert "3.90 tokens a pass, of which 3.80 were kept" in kept.text
    each_control_moves(lambda: acceptance_trace.panel(TRACES))
    assert not acceptance_trace.panel({"one": Trace((9, 3))}).controls
    with pytest.raises(ValueError, match="traces is empty"):
        acceptance_trace.panel({})
    with pytest.raises(ValueError, match="room for 8 drafts"):
        acceptance_trace.panel({"deep": Trace((9,) * 11)})


def test_the_table_of_traces():
    lines = repr(acceptance_trace.table(TRACES)).splitlines()
    assert lines[3].split()[:4] == ["hard", "the", "share,", "43.3%"] and "2.30 (+0.0%)" in lines[3]
    assert len(lines) == 5
    kept = repr(acceptance_trace.table({"all": Trace((100, 98, 97, 95), kept=351)}))
    assert kept.count("3.51 (-10.0%)") == 2


# ---- does 3.30 count the ordinary token? ----


@pytest.mark.parametrize("stand, drafts", [(3.3, 5), (2.3, 5), (0.0, 3), (3.0, 3), (1.2, 8)])
def test_the_chance_behind_a_length_against_numpys_roots(stand, drafts):
    roots = np.roots([1.0] * drafts + [-stand])  # a^n + ... + a - stand
    (real,) = [r.real for r in roots if abs(r.imag) < 1e-9 and -1e-9 <= r.real <= 1 + 1e-9]
    assert chance_behind(stand, drafts) == pytest.approx(real, abs=1e-9)


def test_lengths_that_cannot_be():
    with pytest.raises(ValueError, match="stand=3.3: of 3 drafts between 0 and 3 can stand"):
        chance_behind(3.3, 3)
    with pytest.raises(ValueError, match="drafts=0"):
        chance_behind(0.0, 0)


def test_two_worlds_and_both_fit_the_chart():
    """Drafts alone: 0.8646 each, so 75.3 % of three. With the ordinary token: 0.7516 each."""
    alone, both = world(False), world(True)
    assert (alone.stand, both.stand) == (3.3, pytest.approx(2.3))
    assert (alone.tokens, both.tokens) == (pytest.approx(4.3), pytest.approx(3.3))
    assert alone.share == pytest.approx(0.66) and both.share == pytest.approx(0.46)
    assert alone.share3 == pytest.approx((0.8646 + 0.8646**2 + 0.8646**3) / 3, abs=1e-4)
    assert alone.share3 == pytest.approx(0.75, abs=0.005)  # the chart's, if it is a share
    assert both.chance == pytest.approx(0.75, abs=0.005)  # the chart's, if it is a chance
    cells = [line.split()[-1] for line in repr(accepted_length.table()).splitlines()]
    assert cells[2] == "46%" and cells[3] == "62%" and cells[5] == "75.2%"  # 2.21 of 3.58


def test_the_panel_finds_both_pairs():
    panel = accepted_length.panel()
    assert "no two marks of a kind" in panel.text
    hits = {86.5: "both circles", 75.0: "both squares"}
    for percent, words in hits.items():
        panel.controls["percent"].value = percent
        assert words in panel.text and panel.error is None
    panel.controls["percent"].value = 75.0
    assert "3 drafts make 2.73 tokens a step and 5 make 3.29" in panel.text
    for percent in np.arange(60, 95.1, 0.5):
        panel.controls["percent"].value = float(percent)
        assert ("no two" not in panel.text) == (percent in hits), percent
    each_control_moves(accepted_length.panel)


# ---- implied steps ----


def test_implied_steps_by_hand():
    """60 * 3.30 / 13,730 and so on; 13.2 at the chart's 64 requests of 4 rows each."""
    for mode, ordinary, ms in (
        ("fixed", False, 14.421),
        ("fixed", True, 18.791),
        ("budget", False, 13.314),
        ("budget", True, 17.462),
    ):
        assert implied_steps.implied_ms(60, mode, ordinary) == pytest.approx(ms, abs=0.001)
    at_256_rows = implied_steps.chart_ms(256 / 6, "fixed")
    assert float(at_256_rows) == pytest.approx(13.211, abs=0.001)
    with pytest.raises(ValueError, match="the curve ends at 96 requests"):
        implied_steps.chart_ms(97, "fixed")


def test_about_60_is_where_the_length_counts_the_ordinary_token():
    """The two curves cross once, at 62 to 65 requests; with one token more at 42."""
    for mode in ("fixed", "budget"):
        for ordinary, low, high in ((False, 60, 66), (True, 41, 43)):
            found = implied_steps.fits_at(mode, ordinary)
            assert low < found < high
            for at, shorter in ((found - 1, True), (found + 1, False)):
                implied = implied_steps.implied_ms(at, mode, ordinary)
                assert (implied < implied_steps.chart_ms(at, mode)) == shorter
    lines = repr(implied_steps.table()).splitlines()
    assert [line.split()[-1] for line in lines[1:]] == ["65", "42", "62", "42"]


def test_the_panel_of_implied_steps():
    panel = implied_steps.panel()
    assert "every 14.4 ms if it gives each 3.30 tokens, every 18.8 ms if 4.30" in panel.text
    assert "The chart (13.2 ms at 64 requests, 256 rows)" in panel.text
    each_control_moves(implied_steps.panel)


# ---- tokens a day ----


def test_what_a_day_of_tokens_is():
    assert tokens_a_day.tokens_per_s() == pytest.approx(1_793_981_481.5, abs=1)
    assert tokens_a_day.per_gpu(10_000) == pytest.approx(179_398.1, abs=0.1)
    assert tokens_a_day.per_gpu(10_000, 10) == pytest.approx(17_939.8, abs=0.1)
    assert tokens_a_day.gpus_for(tokens_a_day.per_gpu(5_000, 20), 20) == pytest.approx(5_000)
    assert tokens_a_day.dollars_per_million(10_000) == pytest.approx(38 * 24 * 10_000 / 155e6)
    for call, words in (
        (lambda: tokens_a_day.per_gpu(0), "gpus=0"),
        (lambda: tokens_a_day.per_gpu(5, 101), "percent_written=101 must be 0 to 100"),
        (lambda: tokens_a_day.gpus_for(0), "throughput=0 must be above 0"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


def test_the_panel_of_guesses_says_that_they_are_guesses():
    panel = tokens_a_day.panel()
    assert "17,940 a second and GPU" in panel.text and "Neither guess can be checked" in panel.text
    each_control_moves(tokens_a_day.panel)
    table = repr(tokens_a_day.unknowns())
    assert table.count("Not disclosed") == table.count("cannot be derived") == 6
