"""What notebook 07 says of its panels, at their start and where it sends the reader."""

from __future__ import annotations

import re

import pytest
from notebook_session import read

from g2c_serving.cluster.storage_reads import ReadTimes
from g2c_serving.lab import (
    outlier_panel,
    storage_panels,
)
from g2c_serving.paths import NOTEBOOKS


@pytest.fixture(scope="module")
def cells():
    return {cell.id: cell.source for cell in read(NOTEBOOKS / "07_infrastructure.ipynb").cells}


def says(panel, **values) -> str:
    """The panel's sentence with these controls moved from the start."""
    for name, value in values.items():
        panel.controls[name].value = value
    assert not panel.error
    return panel.text


def numbers(pattern: str, text: str) -> list[str]:
    found = re.search(pattern, text)
    assert found, (pattern, text)
    return list(found.groups())


def test_reads(cells):
    words = cells["reads-words"]
    times = ReadTimes(1.0, 1.0, 0.01, 20.0)
    late = r"([\d.]+) for 1 in 100; the first ten of eleven: .*?([\d.]+) for 1 in 100"
    ten, eleven = numbers(late, says(storage_panels.reads_panel()))
    assert f"{float(ten):.0f} ms for 1 in 100" in words and f"not waited for: {eleven}." in words
    assert 1 - times.back_by(float(eleven)) > 0.01, "a single read is no better"
    ten, eleven = numbers(late, says(storage_panels.reads_panel(), factor=100))
    assert f"goes to {float(ten):.0f} ms, the orange to {eleven}" in words


def test_busy_disks():
    assert "Issuing 11 is best" in says(storage_panels.load_panel(), load=75)
    assert "Issuing 10 is best" in says(storage_panels.load_panel(), load=76)


def test_outlier():
    start, large = says(outlier_panel.panel()), says(outlier_panel.panel(), size=20)
    assert "neighbours are off by 10%" in start
    assert "scale 5," in large and "14 of them are 0, those of the other block 10%" in large
    other = says(outlier_panel.panel(), size=20, format="MXFP4")
    assert "scale 4," in other and "no other block" in other
    back = outlier_panel.rounded(outlier_panel.numbers(20), outlier_panel.FORMATS["MXFP4"])
    assert back[outlier_panel.PLACE] == 24
