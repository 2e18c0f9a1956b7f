"""Step times by rows: what is measured, and the ratios that follow from given times."""

from __future__ import annotations

import pytest
from small_models import random_lm

from g2c_serving.lab import phases
from g2c_serving.lab.phases import DECODE_ROWS, PREFILL_TOKENS, Curve

DECODE = Curve("m", "decode", DECODE_ROWS, (5, 5, 5, 5, 5, 6, 10, 20))
PREFILL = Curve("m", "prefill", PREFILL_TOKENS, (10, 16, 32, 64, 128, 256))


def test_ratios_by_hand():
    assert DECODE.at(64) == 20
    assert DECODE.throughput(8) == 1600  # 8 tokens in 5 ms
    assert DECODE.gain(8, 64) == pytest.approx(2)  # 8 times the tokens in 4 times the time
    assert DECODE.slowdown(8, 64) == 4
    assert PREFILL.gain(32, 512) == 1
    with pytest.raises(ValueError):
        DECODE.at(3)


def test_the_curves_are_measured_at_every_point():
    """32 times the tokens take longer; on a busy machine in one of a few measurements."""
    lm = random_lm(vocab_size=266, context=512)
    for _ in range(5):
        decode, prefill = phases.measure(lm, "small", steps=3)
        assert (decode.rows, prefill.rows) == (DECODE_ROWS, PREFILL_TOKENS)
        assert min(*decode.ms, *prefill.ms) > 0
        if prefill.at(512) > prefill.at(16):
            return
    pytest.fail(f"512 tokens never took longer than 16: {prefill}")


def test_the_panel_says_the_ratios():
    panel = phases.panel([DECODE, PREFILL, other(DECODE), other(PREFILL)])
    panel.controls["model"].value = "m"
    panel.controls["rows"].value, panel.controls["tokens"].value = 32, 512
    assert "32 decoding takes 10.0 ms, 2.0 times one alone, for 16.0 times its" in panel.text
    assert "512 tokens takes 256.0 ms and gives 1.2 times the tokens per second of 16" in panel.text


def other(curve):
    return Curve("other", curve.phase, curve.rows, tuple(2 * ms for ms in curve.ms))


def test_the_table_has_the_brief_s_ratios_beside_ours():
    """1.33 and about 6 stand in the Brief's text for decode, 1.5 and about 11 for prefill."""
    table = phases.compare((DECODE, PREFILL), (other(DECODE), other(PREFILL)))
    rows = {row[0]: row[1:] for row in table.rows}
    assert rows["decode, 8 to 64 requests: tokens per second"] == ("6.06x", "2.00x", "2.00x")
    assert rows["decode, 8 to 64 requests: a step takes"] == ("1.32x", "4.00x", "4.00x")
    assert rows["prefill, 16 times the tokens: tokens per second"] == ("1.50x", "1.00x", "1.00x")
    assert rows["prefill, 16 times the tokens: a step takes"] == ("10.67x", "16.00x", "16.00x")
    assert "Derived" in table.head[1] and "Measured here" in table.head[2]


def test_the_decode_table_is_the_brief_s_with_ours_beside():
    table = phases.decode_table(DECODE)
    assert table.rows[0] == ("8", "325 tok/s", "10.0 ms", "2,600 tok/s", "5.0 ms", "1,600 tok/s")
    assert table.rows[1][:4] == ("64", "246 tok/s", "13.2 ms", "15,744 tok/s")
    assert table.rows[2][1:] == ("103 tok/s", "31.6 ms", "26,368 tok/s", *["not measured"] * 2)
