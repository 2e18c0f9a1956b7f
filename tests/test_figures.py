"""The Brief's figures: the arithmetic by hand, and verdicts that cannot flatter us."""

from __future__ import annotations

import pytest

from g2c_serving.lab import charts, figures, published, toy_budget
from g2c_serving.lab.published import Row, rows

LABELS = {"Reported", "Derived", "G2C interpretation", "Not disclosed"}


def row(**change) -> Row:
    usual = dict(id="x", section="1", label="Derived", what="", value=13.2, unit="ms", how="")
    return Row(**{**usual, "tolerance": 0.05, "kind": "computed", **change})


# ---- section 1, against the Brief's own table ----


@pytest.mark.parametrize(
    "requests, speed, step, throughput",
    [(8, 325, 10.0, 2600), (64, 246, 13.2, 15744), (256, 103, 31.6, 26368)],
)
def test_the_decode_table(requests, speed, step, throughput):
    point = charts.decode_point(requests)
    assert point.user_speed == speed and point.throughput == throughput
    assert point.step_ms == pytest.approx(step, abs=0.06)


def test_what_the_brief_says_of_the_charts():
    assert charts.CHART_TOKENS == 3.25
    assert charts.throughput_gain(8, 64) == pytest.approx(6.06, abs=0.01)
    assert charts.step_slowdown(8, 64) == pytest.approx(4 / 3, abs=0.02)  # about a third slower
    assert charts.prefill_latency_ratio() == pytest.approx(10.67, abs=0.01)  # about 11
    assert charts.marginal_ms(8, 64) == pytest.approx(0.057, abs=0.001)


def test_points_that_nobody_read_off_the_chart_are_refused():
    with pytest.raises(ValueError, match=r"requests 32: .*\(8, 64, 256\)"):
        charts.decode_point(32)


# ---- the file ----


def test_every_row_has_a_label_a_kind_and_its_own_id():
    found = rows().values()
    assert {r.label for r in found} <= LABELS <= set(published.LABELS)
    assert {r.kind for r in found} == {"computed", "shown"}
    assert {r.section for r in found} == {"0", "1", "2", "3", "4", "6", "infra", "numbers"}
    lines = (published.DATA / "figures.csv").read_text().splitlines()
    assert len(rows()) == len(lines) - 1  # no id twice


def test_a_row_that_is_not_there_is_named():
    with pytest.raises(KeyError, match="decode.nothing"):
        published.value("decode.nothing")


def test_only_rows_of_the_file_that_are_computed_are_reproduced():
    for id in figures.REPRODUCED:
        assert rows()[id].kind == "computed", id


# ---- verdicts ----


@pytest.mark.parametrize(
    "ours, verdict",
    [(13.2, "ok"), (13.25, "ok"), (13.26, "OFF"), (13.15, "ok"), (float("nan"), "OFF")],
)
def test_the_tolerance_is_absolute(ours, verdict):
    assert figures.judge(row(), lambda: ours).verdict == verdict


def test_a_row_without_tolerance_must_be_exact():
    exact = row(value=3, tolerance=0)
    assert figures.judge(exact, lambda: 3).verdict == "ok"
    assert figures.judge(exact, lambda: 3.0001).verdict == "OFF"


def test_shown_rows_are_never_counted_and_missing_ones_are_said():
    shown = figures.judge(row(kind="shown"), lambda: 13.2)
    missing = figures.judge(row(), None)
    assert (shown.verdict, missing.verdict) == ("shown", "not yet")
    assert figures.summary([shown, missing]) == (
        "0 of 1 computed rows reproduced, 0 off, 1 not yet; 1 rows are shown only."
    )


# ---- the command ----


@pytest.mark.parametrize(
    "section, done, row",
    [
        ("1", "9 of 9", "decode.step_ms.64 Derived 13.2 13.211 ms ok"),
        ("2", "18 of 18", "hit.evicted_compute Derived 400 400 tokens ok"),
        ("3", "4 of 4", "rng.stream Derived 23 23 ok"),
        ("4", "28 of 28", "toy.rate.6 Derived 0.38 0.37992 tok/ms ok"),
    ],
)
def test_a_section_is_done(section, done, row, capsys):
    assert figures.main(["--section", section]) == 0
    out = capsys.readouterr().out
    assert f"{done} computed rows reproduced, 0 off, 0 not yet; " in out
    assert row.split() in [line.split() for line in out.splitlines()]


def test_the_toy_has_no_times_beyond_its_rows():
    with pytest.raises(ValueError, match="rows=9: the toy has times for up to 8"):
        toy_budget.step_ms(9)


def test_a_missing_or_wrong_row_makes_the_command_fail(monkeypatch, capsys):
    monkeypatch.delitem(figures.REPRODUCED, "decode.step_ms.64")
    assert figures.main(["decode.step_ms"]) == 1
    monkeypatch.setitem(figures.REPRODUCED, "decode.step_ms.64", lambda: 14.0)
    assert figures.main(["decode.step_ms"]) == 1
    assert "OFF" in capsys.readouterr().out


def test_every_computed_row_is_reproduced(capsys):
    assert figures.main([]) == 0
    assert "63 of 63 computed rows reproduced, 0 off, 0 not yet" in capsys.readouterr().out


def test_all_rows_are_printed(capsys):
    figures.main([])
    out = capsys.readouterr().out
    assert all(f"\n{id} " in out for id in rows())


def test_a_prefix_that_matches_nothing_is_refused(capsys):
    with pytest.raises(SystemExit):
        figures.main(["nonsense"])
    assert "'nonsense'" in capsys.readouterr().err
