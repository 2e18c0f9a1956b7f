"""The table of what to read next: our files are there, and vLLM's are where it is installed."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from g2c_serving.lab.read_next import QUESTIONS, table
from g2c_serving.paths import ROOT


def test_our_files_are_there():
    for question in QUESTIONS:
        assert (ROOT / "g2c_serving" / question.ours).is_file(), question.asks


def test_the_questions_of_the_two_contrasts_are_asked():
    """Hash chain against radix tree, recompute against swap."""
    words = repr(table())
    for word in ("chain of hashes", "tree over tokens", "computed again", "swap"):
        assert word in words
    assert words.count("vLLM:") == words.count("SGLang:") == len(QUESTIONS) >= 10


def test_a_page_links_what_is_ours_and_needs_no_wide_window():
    """A list, as Markdown: each line wraps where the window ends. The links are relative to the
    notebooks, and lead to files that are there."""
    page = table()._repr_markdown_()
    links = re.findall(r"\]\(([^)]*)\)", page)
    assert len(links) == len(QUESTIONS)
    assert all((ROOT / "notebooks" / link).resolve().is_file() for link in links)
    assert not any(line.startswith("|") for line in page.splitlines())
    for question in QUESTIONS:
        for file in (question.vllm.file, question.sglang.file):
            assert f"`{file}`" in page


def test_vllms_files_and_names_are_there():
    """Only where it is installed; another version may have moved them."""
    found = importlib.util.find_spec("vllm")
    if found is None or found.origin is None:
        pytest.skip("vLLM is not installed")
    for question in QUESTIONS:
        assert (Path(found.origin).parent / question.vllm.file).is_file(), question.vllm
