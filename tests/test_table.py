"""Tables in a notebook's cell: Markdown, and the same as aligned text."""

from __future__ import annotations

import pytest

from g2c_serving.lab.table import Table

TABLE = Table(("what", "ours"), [("step time", "5.0 ms"), ("rows", "64")])


def test_markdown():
    assert TABLE._repr_markdown_() == (
        "| what | ours |\n| --- | ---: |\n| step time | 5.0 ms |\n| rows | 64 |"
    )


def test_text():
    assert repr(TABLE) == "what         ours\nstep time  5.0 ms\nrows           64"


def test_a_row_of_another_length_is_refused():
    with pytest.raises(ValueError, match=r"row \['a'\] has 1 cells for 2 columns"):
        Table(("x", "y"), [("a",)])


def test_a_marker_in_a_cell_is_shown_as_it_is():
    table = Table(("marker", "tokens"), [("<|user|>", "1")])
    assert table._repr_markdown_().splitlines()[2] == "| &lt;\\|user\\|> | 1 |"
    assert "<|user|>" in repr(table)


def test_columns_of_words_are_flush_left_and_prices_are_no_formula():
    table = Table(
        ("ask", "answer", "ms"), [("what", "all of it", "5"), ("why", "$1 or $2", "12")], 2
    )
    assert repr(table) == "ask   answer     ms\nwhat  all of it   5\nwhy   $1 or $2   12"
    assert table._repr_markdown_().splitlines()[1] == "| --- | --- | ---: |"
    assert "\\$1 or \\$2" in table._repr_markdown_()
