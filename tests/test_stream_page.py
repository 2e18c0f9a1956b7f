"""What notebook 05 shows of the output side: the stream token by token, and a spelled marker."""

from __future__ import annotations

import pytest

from g2c_serving.lab import spelled_marker, stream_view
from g2c_serving.paths import DATA
from g2c_serving.process.tokenizer import Tokenizer

TINY = Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")
HEART = "\u2764"


def ends(panel):
    """Every control at both ends: the sentence each time, with the picture."""
    for name, control in panel.controls.items():
        before = control.value
        for value in control.ends:
            control.value = value
            assert panel.error is None
            yield name, value, panel.text, panel.png
        control.value = before


# ---- token by token ----


def test_a_heart_of_three_tokens_by_hand():
    ids = stream_view.token_ids(TINY, stream_view.TEXTS["a heart of three tokens"])
    found = stream_view.rows(TINY, ids)
    assert [row.data for row in found[2:5]] == [b"\xe2", b"\x9d", b"\xa4"]
    assert [row.given for row in found[:6]] == ["I", " ", "", "", HEART, " t"]
    assert [row.held_bytes for row in found[2:5]] == [b"\xe2", b"\xe2\x9d", b""]
    assert "".join(row.given for row in found) == f"I {HEART} tea and cake."
    assert "".join(row.alone for row in found) == "I \ufffd\ufffd\ufffd tea and cake."


def test_what_is_cut_off_is_shown_at_the_end():
    ids = stream_view.token_ids(TINY, stream_view.TEXTS["cut off inside the heart"])
    found = stream_view.rows(TINY, ids)
    assert found[-1].data == b"" and found[-1].given == "\ufffd"
    assert found[-2].held_bytes == b"\xe2\x9d" and found[-2].given == ""


@pytest.mark.parametrize("text", stream_view.TEXTS)
@pytest.mark.parametrize("stop", stream_view.STOPS)
def test_columns_suffice_and_nothing_of_a_stop_string_is_shown(text, stop):
    ids = stream_view.token_ids(TINY, stream_view.TEXTS[text])
    stops = () if stop == stream_view.NO_STOP else (stop,)
    found = stream_view.rows(TINY, ids, stops)
    assert len(found) <= stream_view.MOST
    assert not stops or stop not in "".join(row.given for row in found)


def test_the_stream_panel_tells_what_waits():
    panel = stream_view.panel(TINY)
    assert "Token 4 brings \\x9d: the parser shows nothing and \\xe2\\x9d waits" in panel.text
    panel.controls["tokens"].value = 5
    assert f"the parser shows '{HEART}'." in panel.text and "with 3 broken" in panel.text
    panel.controls["stop"].value = "tea time"
    panel.controls["tokens"].value = 8
    assert "the parser shows nothing and tea waits" in panel.text
    panel.controls["stop"].value = "cake"
    panel.controls["tokens"].value = 13
    assert "Stop string 'cake' is complete, none of it shown" in panel.text
    assert f"So far: 'I {HEART} tea and '" in panel.text


@pytest.mark.parametrize("module", [stream_view, spelled_marker])
def test_every_end_of_a_control_is_another_picture(module):
    panel = module.panel(TINY)
    seen: dict[str, set] = {}
    for name, _, text, png in ends(panel):
        seen.setdefault(name, set()).add((text, png))
    assert all(len(some) == 2 for some in seen.values())


# ---- a spelled marker ----


def read(name):
    ids = spelled_marker.output_ids(TINY, spelled_marker.THOUGHTS[name])
    return ids, spelled_marker.by_text(TINY, ids), spelled_marker.by_id(TINY, ids)


@pytest.mark.parametrize("name", spelled_marker.THOUGHTS)
def test_by_id_the_answer_is_what_follows_the_thought(name):
    ids, _, ours = read(name)
    assert ours.answer == spelled_marker.ANSWER_TEXT and ours.calls == ()
    assert len(ours.channels) == len(ids)
    assert spelled_marker.MOST - 3 < len(ids) <= spelled_marker.MOST  # the slider's steps move it
    assert ours.channels.count("marker") == 3  # the two of the thought, and the end
    assert len(TINY.decode(ids)) < spelled_marker.WIDE


def test_by_text_a_spelled_end_shows_the_rest_of_the_thought():
    ids, naive, ours = read("an end of thought")
    assert naive.answer == " and then 99. Back to 3 + 4, which is 7Mia has 7 hats."
    spelled = TINY.encode("</think>")
    place = next(i for i in range(len(ids)) if ids[i : i + len(spelled)] == spelled)
    assert set(naive.channels[place : place + len(spelled)]) == {"marker"}
    assert set(ours.channels[place : place + len(spelled)]) == {"reasoning"}


def test_by_text_a_spelled_call_reaches_the_tool():
    _, naive, _ = read("a tool call")
    assert naive.calls == ('{"name": "wipe"}',)


def test_without_a_marker_in_the_thought_both_read_the_same():
    _, naive, ours = read("no marker")
    assert naive == ours


def test_the_marker_panel_tells_both_readings():
    panel = spelled_marker.panel(TINY)
    panel.controls["thought"].value = "a tool call"
    assert "Read by text" in panel.text and 'called with \'{"name": "wipe"}\'' in panel.text
    assert "Read by id, the user sees 'Mia has 7 hats.' and no tool is called." in panel.text
