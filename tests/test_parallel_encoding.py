"""The long prompt and what is measured on it: sizes, identities, never a speed."""

from __future__ import annotations

import os

import pytest

from g2c_serving.lab import parallel_encoding
from g2c_serving.paths import DATA
from g2c_serving.process.prompt import Text
from g2c_serving.process.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def shipped() -> Tokenizer:
    return Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")


def texts(prompt) -> list[str]:
    return [part.text for part in prompt if isinstance(part, Text)]


def test_cut_or_not_it_is_the_same_text() -> None:
    turns = texts(parallel_encoding.long_prompt(20_000))
    cut = texts(parallel_encoding.long_prompt(20_000, segment=300))
    assert "".join(turns) == "".join(cut)
    assert 20_000 <= len("".join(turns).encode("utf-8")) < 24_000
    assert {len(text) for text in cut[:-1]} == {300}


def test_all_ways_give_the_same_ids(shipped: Tokenizer) -> None:
    prompt = parallel_encoding.long_prompt(50_000)
    together = shipped.encode_parts(prompt)
    assert together == parallel_encoding._on_one_core(shipped, prompt)
    found = [shipped.encode(text) for text in texts(prompt)]
    assert [i for i in together if not 256 <= i < 266] == [i for ids in found for i in ids]


@pytest.mark.parametrize("before", [None, "true"])
def test_the_switch_is_put_back(shipped: Tokenizer, monkeypatch, before) -> None:
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.delenv(name, raising=False)
    if before:
        monkeypatch.setenv(name, before)
    parallel_encoding.measure(shipped, parallel_encoding.long_prompt(2_000), repeats=1)
    assert os.environ.get(name) == before


def test_ratios_and_sentence_by_hand() -> None:
    ways = (parallel_encoding.WHOLE, parallel_encoding.LOOP, parallel_encoding.ONE_CORE,
            parallel_encoding.ALL_CORES)  # fmt: skip
    clock = dict(zip(ways, (6.0, 4.0, 2.0, 1.0), strict=True))
    cpu = dict(zip(ways, (6.0, 3.0, 2.0, 1.8), strict=True))
    timing = parallel_encoding.Timing(1_000_000, 1_000, 2, clock, cpu)
    assert "6.0 times as fast" in str(timing)
    assert "factor of 3.0, the cores one of 2.0" in str(timing)
    assert timing.table().rows[1][1:] == ("4,000 ms", "3,000 ms", "0.8", "1.50")
    assert "1.8 were in use" in str(timing)


def test_growth_has_a_row_a_size_and_one_of_the_whole_prompt(shipped: Tokenizer) -> None:
    """The last row is what the timing says: 0.5 s of the processor for 1 MB are 500 ns a byte."""
    times = {parallel_encoding.WHOLE: 0.5}
    timing = parallel_encoding.Timing(1_000_000, 9, 2, {parallel_encoding.WHOLE: 0.9}, times)
    rows = parallel_encoding.growth(shipped, timing, (100, 1_000), repeats=1).rows
    assert [row[0] for row in rows] == ["100", "1,000", "1,000,000"]
    assert rows[-1][1:] == ("500.0 ms", "500")


def test_a_prompt_without_bytes_is_refused() -> None:
    with pytest.raises(ValueError, match="num_bytes=0 must be 1 or more"):
        parallel_encoding.long_prompt(0)
