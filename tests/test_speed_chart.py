"""A chart as CSV: what is read, what is refused, and the panel that takes it apart."""

from __future__ import annotations

import pytest

import g2c_serving as g
from g2c_serving.lab import chart_panel, charts, checklist, own_chart, speed_chart
from g2c_serving.lab.speed_chart import CHANCE, COLUMNS, SHARE, Point, decode_chart, read

HEAD = ",".join(COLUMNS)
OWN = f"""{HEAD}
mine, 1, 120, , , off, measured
mine, 16, 70.5, , , off, measured
theirs, 16, 150, 5, 0.7, fixed, measured
budget, 16, 130, , , budgeted, estimated
"""


def test_the_decode_chart_s_steps():
    """246 tokens a second at tau 3.25: 75.7 steps, 13.2 ms; as a chance 207."""
    points = decode_chart()
    assert [p.tau for p in points] == [3.25] * 3
    for p in points:
        assert 1000 / p.steps_per_s == pytest.approx(charts.decode_point(p.requests).step_ms)
        assert p.read_with(0.75) == pytest.approx(p.tokens_per_s)
    assert points[1].read_with(0.75, CHANCE) == pytest.approx(246 * 2.734375 / 3.25)
    assert points[1].read_with(0) == pytest.approx(246 / 3.25)
    assert points[1].read_with(1) == pytest.approx(4 * 246 / 3.25)


def test_a_csv_as_people_write_it(tmp_path):
    points = read(OWN)
    assert points[0] == Point("mine", 1, 120.0) and not points[0].is_assumed
    assert points[2].tau == 4.5 and points[2].steps_per_s == pytest.approx(150 / 4.5)
    file = tmp_path / "my chart.csv"
    file.write_text(OWN, encoding="utf-8-sig", newline="\r\n")  # as a spreadsheet writes it
    assert read(file) == points
    spaced = "\ufeff\n" + OWN.replace("run,requests", " RUN , Requests").replace("fixed", "Fixed")
    assert read(spaced.replace("mine, 16", "  \nmine, 16")) == points
    file.write_text(OWN, encoding="utf-16")
    with pytest.raises(ValueError, match="my chart.csv is not in UTF-8: save it as CSV UTF-8"):
        read(file)


def test_counted_tokens_stay_whatever_is_assumed():
    counted = read(OWN)[3]
    assert counted.tau is None and counted.steps_per_s is None
    assert counted.read_with(0.1) == counted.read_with(0.9, CHANCE) == 130


@pytest.mark.parametrize(
    "line, words",
    [
        ("a,16,130,3,0.75,budgeted,measured", "line 2: verification=budgeted with tau 3.25"),
        ("a,16,130,3,,fixed,measured", "assumed_acceptance is empty: tau needs both"),
        ("a,16,130,,0.5,fixed,measured", "assumed_drafts is empty: tau needs both"),
        ("a,16,130,3,75,fixed,measured", r"assumed_acceptance=75.0 must be a fraction"),
        ("a,16,130,-1,0.5,fixed,measured", "assumed_drafts=-1 must be 0 to 64"),
        ("a,16,130,3,0.5,off,measured", "assumed_drafts=3 with verification=off: write fixed"),
        ("a,16,130,,,fast,measured", "verification='fast' must be off, fixed or budgeted"),
        ("a,16,130,,,off,guessed", "source='guessed' must be measured or estimated"),
        ("a,0,130,,,off,measured", "requests=0 must be 1 or more"),
        ("a,16,0,,,off,measured", "tokens_per_s=0.0 must be a number above 0"),
        ("a,16,nan,,,off,measured", "tokens_per_s=nan must be a number above 0"),
        ("a,x,130,,,off,measured", "requests='x' must be a whole number"),
        ("a,16,fast,,,off,measured", "tokens_per_s='fast' must be a number"),
        ("a,16,130", "verification='' must be"),
        (",16,130,,,off,measured", "line 2: run is empty: name the curve"),
        ("a,16,130,3,0,8,fixed,measured", "line 2 has 8 cells, the first line 7 names: write 0.8"),
        ('a,16,130,3,"0,8",fixed,measured', "assumed_acceptance='0,8' must be .*: write 0.8"),
        ('a,16,"1,252",,,off,measured', "tokens_per_s='1,252' must be .*: write 1252"),
        ("a,16,130,3,80%,fixed,measured", "assumed_acceptance='80%' must be .*: write 0.8"),
    ],
)
def test_what_no_chart_can_mean_is_refused(line, words):
    with pytest.raises(ValueError, match=words):
        read(f"{HEAD}\n{line}\n")


def test_files_that_are_no_charts():
    with pytest.raises(ValueError, match="no column assumed_drafts: the first line must be run,"):
        read("run,requests,tokens_per_s\na,1,2\n")
    for separator in ";\t":
        with pytest.raises(ValueError, match="the first line has no comma: separate with commas"):
            read(OWN.replace(",", separator))
    with pytest.raises(ValueError, match=r"a file's name. Give Path\('chart.csv'\)"):
        read("chart.csv")
    with pytest.raises(ValueError, match="no column run"):
        read("")
    with pytest.raises(ValueError, match="the CSV has no points"):
        read(HEAD + "\n")
    with pytest.raises(ValueError, match="reading 'odds' must be one of"):
        decode_chart()[0].read_with(0.5, "odds")
    with pytest.raises(ValueError, match="acceptance=75 must lie between 0 and 1"):
        decode_chart()[0].read_with(75)


# ---- the panel ----


def panels():
    return {
        "decode": chart_panel.panel(decode_chart()),
        "own": chart_panel.panel(read(OWN), "Measured here"),
        "counted": chart_panel.panel(read(OWN)[:2], "Measured here"),
    }


@pytest.mark.parametrize("name", ["decode", "own", "counted"])
def test_every_control_moves_the_sentence_and_the_picture(name):
    panel = panels()[name]
    for control in panel.controls.values():
        for end in control.ends:
            text, draws = panel.text, panel.draws
            moved = control.value != end
            control.value = end
            assert panel.error is None
            assert (panel.text != text) == moved and panel.draws == draws + moved


def test_only_what_was_assumed_moves():
    panel = chart_panel.panel(decode_chart())
    assert "75.7 steps a second (measured), times tau 3.25" in panel.text
    assert "246 tokens a second of a user, as printed; times 64 requests 15,744" in panel.text
    panel.controls["reading"].value = CHANCE
    assert "75.7 steps a second (measured), times tau 2.73" in panel.text
    assert "207 tokens a second of a user, -16% against the 246 printed" in panel.text
    own = panels()["own"]
    own.controls["point"].value = "budget, 16 requests"
    assert (
        "no tau in them, so nothing moves" in own.text and "1 of the chart's 4 points" in own.text
    )
    assert set(panels()["counted"].controls) == {"point"}
    assert not chart_panel.panel(read(OWN)[:1]).controls  # one counted point: nothing to move


def test_charts_that_cannot_be_drawn():
    with pytest.raises(ValueError, match="points hold 0 runs"):
        chart_panel.panel([])
    with pytest.raises(ValueError, match="points hold 4 runs: give 1 to 3"):
        chart_panel.panel([Point(name, 1, 1.0) for name in "abcd"])
    with pytest.raises(ValueError, match="41 points: the picture has room for 40; leave loads out"):
        chart_panel.panel([Point("a", n, 1.0) for n in range(1, 42)])
    with pytest.raises(ValueError, match="two points at the same requests"):
        chart_panel.panel([Point("a", 1, 1.0), Point("a", 1, 2.0)])


def test_many_points_and_long_names_find_room():
    name = "the engine that we bought last year"
    panel = chart_panel.panel([Point(name, n, 100.0) for n in range(1, 41)])
    for axes in panel.figure.axes:
        ticks = list(axes.get_xticks())
        assert 4 <= len(ticks) <= 5 and (ticks[0], ticks[-1]) == (1, 40)
    labels = panel.figure.axes[1].get_legend_handles_labels()[1]
    assert labels[0] == "the engine that w..." and name in panel.text


def test_one_slider_for_points_that_assume_different_shares():
    points = [Point("a", 1, 90.0, 3, 0.755, "fixed"), Point("b", 1, 80.0, 3, 0.6, "fixed")]
    panel = chart_panel.panel(points)
    assert "This chart assumes 60% and 75.5%; the slider sets one for all." in panel.text
    assert panel.controls["percent"].value == 75.5 and "times 1 request " in panel.text
    assert "the slider sets" not in chart_panel.panel(points[:1]).text
    one = chart_panel.panel([*points[:1], Point("c", 1, 50.0)])
    one.controls["percent"].value, one.controls["point"].value = 50.0, "c, 1 request"
    assert (
        "1 of the chart's 2 points assumes one: with a = 50% as a share it goes by -23%."
        in one.text
    )


def test_the_steps_behind_a_chart():
    lines = repr(chart_panel.steps_table(decode_chart())).splitlines()
    assert [line.split()[-3] for line in lines[1:]] == ["10.0", "13.2", "31.6"]
    assert "counted" in repr(chart_panel.steps_table(read(OWN)))


# ---- your own ----


def test_at_its_own_share_the_assumed_chart_is_the_counted_one(monkeypatch):
    """Tokens are counted at the outputs, the share at the drafts: they meet at every load."""
    monkeypatch.setattr(own_chart, "STEPS", 2)
    timed = own_chart.measure(g.load("tiny"), g.load("tiny-drafter"), (1, 3), 2, temperature=1.5)
    assert [(one.requests, one.steps, one.trace.drafts) for one in timed] == [(1, 6, 2), (3, 6, 2)]
    for one in timed:
        assert one.trace.stood[0] == 6 * one.requests  # all decode, in every step
        counted, assumed = own_chart.points([one], one.trace.share)
        assert counted.tokens_per_s == pytest.approx(assumed.tokens_per_s)
        middle = sorted(one.seconds)[1]
        assert len(one.seconds) == 3 and assumed.steps_per_s == pytest.approx(2 / middle)
        assert not counted.is_assumed
    assert 0 < own_chart.share(timed) <= 1
    made = own_chart.Timed(4, 6, (0.1, 0.4, 0.2), 24, timed[0].trace)
    assert made.rates == pytest.approx([5, 10, 20]) and made.user_tokens_per_s == pytest.approx(10)
    assert "10.0   5.0 to 20.0" in repr(own_chart.table([made]))
    panel = chart_panel.panel(own_chart.points(timed), "Measured here")
    assert panel.error is None and set(panel.controls) == {"point", "percent", "reading"}
    with pytest.raises(ValueError, match="assumed_acceptance=75 must be a fraction"):
        own_chart.points(timed, 75)


# ---- the checklist ----


def test_the_blank_fills_in_what_the_points_say():
    text = repr(checklist.blank(read(OWN), {"who": "me, on my laptop"}))
    assert "3 of 4 points counted; the others are steps times tau 4.50" in text
    assert "verification budgeted and fixed and off" in text and "4 points, 1 to 16" in text
    assert "me, on my laptop" in text and checklist.TO_FILL in text
    assert "none is assumed" in repr(checklist.blank(read(OWN)[:2]))
    with pytest.raises(ValueError, match="answers has 'whom', which is no question"):
        checklist.blank(read(OWN), {"whom": "me"})
    with pytest.raises(ValueError, match="points is empty"):
        checklist.blank([])
    with pytest.raises(ValueError, match="answers is a list: give a dict by id"):
        checklist.blank(read(OWN), ["me"])
    assert " 3\n" in repr(checklist.blank(read(OWN), {"who": 3}))
    one = repr(checklist.blank(read(OWN)[2:3]))
    assert "1 point, 16 requests" in one and "  steps times tau 4.50" in one
    assert "1 point, 1 request\n" in repr(checklist.blank(read(OWN)[:1]))


def test_the_checklist_asks_each_thing_once():
    ids = [q.id for q in checklist.QUESTIONS]
    assert len(set(ids)) == len(ids) >= 10
    text = repr(checklist.table())
    assert "Not disclosed" in text and "131K" in text and "fixed-length verification" in text
    assert "estimated from benchmarks" in repr(checklist.kinds())
    with pytest.raises(ValueError, match="label 'Rumour' must be one of"):
        checklist.Question("x", "?", "", "", "Rumour")


def test_readings_have_the_names_that_the_panel_shows():
    assert list(speed_chart.READINGS) == [SHARE, CHANCE]
