"""What other people wrote, and this engine reads: weights, tokenizers, names of files, prompts.
None of it runs code, leaves its folder, or costs more than is stated.

Right values: by hand, or from the standard library. docs/threats.md has the list. Beside this file:
test_tenants.py, test_hostile_cache.py (the disk), test_hostile_clients.py (the server),
test_openai_trust.py and test_rogue_peers.py (whom we ask), test_schema_check.py (grammars).
"""

from __future__ import annotations

import ast
import itertools
import json
import os
import pickle
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import course_files
import numpy as np
import pytest
import torch
from hugging_faces import saved
from test_artifacts import MINI

import g2c_serving as g
from g2c_serving import json_files
from g2c_serving.backend import Backend
from g2c_serving.forward.checkpoint_files import INDEX, is_file_name
from g2c_serving.lab import simulated
from g2c_serving.lab.grading import Verdict
from g2c_serving.lab.panel import Panel
from g2c_serving.lab.plots import Picture
from g2c_serving.lab.table import Table
from g2c_serving.paths import ROOT
from g2c_serving.process.bpe_spec import byte_of_character
from g2c_serving.process.hf_tokenizer import HuggingFaceTokenizer
from g2c_serving.sample.grammar import Grammar
from g2c_serving.train.trainer import load_checkpoint

TINY = g.load("tiny")
posix = pytest.mark.skipif(sys.platform == "win32", reason="no such files there")


def refusal(source: object) -> str:
    with pytest.raises((FileNotFoundError, ValueError)) as caught:
        g.load(source)
    return str(caught.value)


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return course_files.write(tmp_path, "Mini-1M-base", MINI)


@pytest.fixture
def sharded(tmp_path: Path) -> Path:
    saved(tmp_path / "llama", "llama", shard="60KB")
    return tmp_path / "llama"


# code that comes as data

UNSAFE = {"cloudpickle", "dill", "joblib", "marshal", "runpy", "shelve", "yaml"}
RUN = {"eval", "exec", "os.system", "torch.jit.load", "torch.hub.load", "numpy.load"}
GUARDS = {"torch.load": ("weights_only", True), "np.load": ("allow_pickle", False)}
WORDS = re.compile("|".join(UNSAFE) + r"|pickle|load\(|eval\(|exec\(|os\.system|shell=")
RUNS_TEXT = {"g2c_serving/lab/stray_sync.py"}  # what its own page shows, not what it reads


def says(call: ast.Call, name: str, value: bool) -> bool:
    given = [word.value for word in call.keywords if word.arg == name]
    return [ast.literal_eval(one) for one in given] == [value]


def dotted(node: ast.AST) -> str:
    """`torch.load` and the like; "" for what is no name."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def unguarded(tree: ast.AST) -> Iterator[str]:
    """What would run code that it reads."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name for a in node.names if a.name.split(".")[0] in UNSAFE)
        elif isinstance(node, ast.ImportFrom):
            yield from {str(node.module).split(".")[0]} & {*UNSAFE, "pickle"}
        elif isinstance(node, ast.Attribute):
            name = dotted(node)
            yield from [name] if name.startswith("pickle.") and "Error" not in name else ()
        elif isinstance(node, ast.Call):
            name = dotted(node.func)
            yield from [name] if name in RUN else ()
            yield from ["shell"] if any(word.arg == "shell" for word in node.keywords) else ()
            guard = GUARDS.get(name)
            yield from [name] if guard and not says(node, *guard) else ()


def test_nothing_that_is_read_is_run():
    paths = sorted((ROOT / "g2c_serving").rglob("*.py"))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in paths}
    trees = {path: ast.parse(text) for path, text in texts.items() if WORDS.search(text)}
    found = {path: set(unguarded(tree)) for path, tree in trees.items()}
    assert {path for path, names in found.items() if names} == RUNS_TEXT
    assert all(found[path] == {"exec"} for path in RUNS_TEXT)
    loads = [path for path, text in texts.items() if "torch.load(" in text]
    assert len(loads) >= 2  # there is something to look at


@pytest.mark.parametrize(
    "text",
    [
        "import pickle; pickle.loads(x)", "import pickle; pickle.Unpickler(x)", "import yaml",
        "from pickle import load", "import joblib.x", "torch.load(x)", "np.load(x)", "eval(x)",
        "torch.load(x, weights_only=False)", "np.load(x, allow_pickle=True)", "run(x, shell=True)",
    ],
)  # fmt: skip
def test_the_look_at_the_code_sees(text):
    assert list(unguarded(ast.parse(text)))


def test_the_requirement_excludes_a_torch_that_can_be_broken_out_of():
    """CVE-2025-32434: before 2.6.0 `weights_only=True` ran code in a file that was made for it."""
    for name in ("requirements.txt", "pyproject.toml"):
        low = re.search(r"torch>=(\d+)\.(\d+)", (ROOT / name).read_text(encoding="utf-8"))
        assert low and (int(low[1]), int(low[2])) >= (2, 6), name


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self):
        return (Path.touch, (self.mark,))


@pytest.mark.parametrize("how", ["zip", "old format", "pickle", "nested", "as safetensors"])
def test_a_hostile_file_of_weights_is_refused_and_runs_nothing(how, artifact, tmp_path):
    mark, path = tmp_path / "ran", artifact / "model.pt"
    evil: object = {"params": [Evil(mark)]}
    if how == "nested":
        evil = {"params": course_files.params(MINI), "model_config": {"a": [Evil(mark)]}}
    if how == "pickle":
        path.write_bytes(pickle.dumps(evil, 2))
    else:
        torch.save(evil, path, _use_new_zipfile_serialization=how != "old format")
    if how == "as safetensors":
        path.rename(artifact / "model.safetensors")
    said = refusal(artifact)
    assert f"{artifact / 'model'}" in said and "is damaged" in said
    assert "weights_only" not in said and not mark.exists()


def test_a_hostile_checkpoint_is_refused_and_runs_nothing(tmp_path):
    torch.save({"step": Evil(tmp_path / "ran")}, tmp_path / "run.pt")
    with pytest.raises(ValueError, match=r"run\.pt is no checkpoint of ours.*without --resume"):
        load_checkpoint(None, tmp_path / "run.pt")
    assert not (tmp_path / "ran").exists()


def test_hostile_arrays_are_refused_and_run_nothing(tmp_path, monkeypatch):
    np.savez(tmp_path / "bad.npz", x=np.array([Evil(tmp_path / "ran")], dtype=object))
    monkeypatch.setattr(simulated, "FOLDER", tmp_path)
    with pytest.raises(ValueError, match="allow_pickle=False"):
        simulated.load("bad")
    assert not (tmp_path / "ran").exists()


# names that lead elsewhere

ELSEWHERE = [
    "..", ".", "", "../Other", "a/../../Other", "/etc", "a/b", "a\\b", "C:", "C:x", "\\\\host\\x",
    "~/x\0", "\0", "a\0b", "a\n", "\x1b[2J", "\ud800", "\u202egnp", ".. ", "...", ". .", "a.", "a ",
    "x" * 256, "\U0001f600" * 64, 5, None, ["Other"], True, {"a": 1},
]  # fmt: skip


@pytest.mark.parametrize("name", ELSEWHERE, ids=ascii)
def test_a_manifest_names_a_tokenizer_and_no_path(name, artifact, tmp_path):
    """All folders that the name could lead to are there."""
    course_files.write_tokenizer(tmp_path, "Other", 400)
    course_files.write_tokenizer(tmp_path, "..", 400)
    manifest = {"vocab_size": 300, "tokenizer_artifact": name}
    (artifact / "manifest.json").write_text(json.dumps(manifest))
    assert "names no tokenizer_artifact: found" in refusal(artifact)


@pytest.mark.parametrize("name", ELSEWHERE, ids=ascii)
def test_an_index_names_shards_and_no_path(name, sharded):
    index = json.loads((sharded / INDEX).read_text())
    index["weight_map"] |= {"model.norm.weight": name}
    (sharded / INDEX).write_text(json.dumps(index))
    said = refusal(sharded)
    assert "expected a weight_map from tensors to files beside it" in said


@pytest.mark.parametrize("name", ["StoryTokenizer", ".hidden", "a.b c-d", "ö" * 127, "a" * 255])
def test_names_of_files_are_taken(name):
    assert is_file_name(name)


@posix
def test_links_inside_a_folder_are_followed(sharded, tmp_path):
    """As in the cache of Hugging Face, which is made of them: a link is not the manifest's word.
    What lies there is read as weights or JSON, and nothing is written."""
    (tmp_path / "snapshot").mkdir()
    for path in sharded.iterdir():
        (tmp_path / "snapshot" / path.name).symlink_to(path)
    assert g.load(tmp_path / "snapshot").fingerprint == g.load(sharded).fingerprint


@pytest.mark.parametrize("source", ["x" * 300, "x" * 5000, "a\0b", "\ud800"], ids=ascii)
def test_a_path_that_cannot_be_is_no_model(source):
    with pytest.raises(FileNotFoundError, match="no model"):
        g.load(source)


@pytest.mark.parametrize("folder", ["", "a\0b", "\ud800"], ids=ascii)
def test_a_cache_folder_that_cannot_be_is_named(folder):
    with pytest.raises(ValueError, match="cache_dir=.* must be a folder's path"):
        g.EngineConfig(enable_prefix_caching=True, cache_dir=folder)


# files without end


@pytest.fixture
def small(monkeypatch):
    """No file may have more than 100 kB."""
    monkeypatch.setattr(json_files, "MOST_BYTES", 100_000)


def grow(path: Path) -> None:
    with open(path, "ab") as file:
        file.write(b" " * 100_001)


@pytest.mark.parametrize("name", ["config.json", "manifest.json", "tokenizer.json"])
def test_a_file_of_an_artifact_that_is_too_large_is_not_read(name, small, artifact, tmp_path):
    g.load(artifact)
    path = artifact / name
    if name == "tokenizer.json":
        path = tmp_path / "tokenizers" / MINI.tokenizer / name
    grow(path)
    assert "bytes; at most 100,000 are read" in refusal(artifact)


@pytest.mark.parametrize("name", ["config.json", INDEX, "generation_config.json"])
def test_a_file_of_hugging_face_that_is_too_large_is_not_read(name, small, sharded):
    g.load(sharded)
    grow(sharded / name)
    assert "bytes; at most 100,000 are read" in refusal(sharded)


@pytest.mark.parametrize("name", ["vocab.json", "merges.txt", "tokenizer.json"])
def test_a_tokenizer_that_is_too_large_is_not_read(name, small, tmp_path):
    vocab = {character: i for character, i in byte_of_character().items()}
    (tmp_path / "vocab.json").write_text(json.dumps(vocab))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    assert HuggingFaceTokenizer.load(tmp_path).encode("a") == [97]
    grow(tmp_path / name)
    with pytest.raises(ValueError, match="bytes; at most 100,000 are read"):
        HuggingFaceTokenizer.load(tmp_path)


@posix
@pytest.mark.parametrize("name", ["config.json", "manifest.json"])
def test_a_pipe_is_not_waited_at(name, artifact):
    (artifact / name).unlink()
    os.mkfifo(artifact / name)
    assert f"{name} is missing" in refusal(artifact)


def test_forty_merges_are_no_terabyte(artifact, tmp_path):
    """Each doubles the token before it: 2^40 bytes, of a file of 1 kB."""
    merges = [[97, 97, 264], *([i, i, i + 1] for i in range(264, 303))]
    content = {"format": "g2c.bpe", "version": 2, "special_tokens": course_files.SPECIALS}
    path = tmp_path / "tokenizers" / MINI.tokenizer / "tokenizer.json"
    path.write_text(json.dumps(content | {"merges": merges}))
    assert "makes more than 67,108,864 bytes of tokens" in refusal(artifact)


# text that is markup

MARKUP = "<script>alert(1)</script><img src=x onerror=alert(1)>"


def test_no_text_becomes_markup_on_a_page():
    """The four places that make HTML or Markdown: a panel's sentence and errors, a picture's words,
    a verdict, a table."""
    says: list[str] = [MARKUP]
    panel = Panel(lambda figure: {}, lambda artists: says.pop(), {})
    pages = [panel.caption.value, panel.picture.value]
    says.append(f"{MARKUP}2")
    panel._update = lambda artists: int(says.pop())  # fails, and says at what
    panel.run()
    pages += [panel.caption.value, Picture(b"", MARKUP, 9)._repr_mimebundle_()[0]["text/html"]]
    pages += [Verdict(False, MARKUP, MARKUP, MARKUP)._repr_html_()]
    pages += [Table([MARKUP], [[MARKUP]])._repr_markdown_()]
    for page in pages:
        assert "<script" not in page and "<img src=x" not in page
        assert "&lt;script" in page


# prompts, parameters and grammars without end


@pytest.mark.parametrize("prompt", ["a" * 10**7, [g.Reserved("<|user|>"), "a" * 10**7]], ids=type)
def test_a_text_that_no_context_holds_is_not_encoded(prompt, monkeypatch):
    def never(*_):
        raise AssertionError("it was encoded")

    monkeypatch.setattr(g.Tokenizer, "_encode_all", never)
    for add in (g.Engine(TINY).add, Backend(TINY).complete):
        with pytest.raises(ValueError, match="prompt has 10,000,000 characters; the context limit"):
            add(prompt)


def test_the_longest_text_that_fits_is_served():
    """Right value: the longest token, as often as the context takes it."""
    longest = max(range(266, 1024), key=lambda i: len(TINY.tokenizer.token_bytes(i)))
    prompt = TINY.tokenizer.decode([longest] * 511)
    (output,) = g.Engine(TINY).generate([prompt], g.SamplingParams(max_tokens=1))
    assert output.prompt_token_ids == TINY.tokenizer.encode(prompt)


def test_salts_have_a_length():
    engine = g.Engine(TINY, g.EngineConfig(enable_prefix_caching=True))
    engine.add([1], cache_salt="x" * 4096)
    with pytest.raises(ValueError, match="cache_salt has 4,097 characters; at most 4,096"):
        engine.add([1], cache_salt="x" * 4097)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("stop_token_ids", itertools.count()), ("stop", itertools.repeat("a")),
        ("stop", "a" * 10**7), ("stop", ["a"] * 65), ("logprobs", 1001), ("n", 16_385),
        ("seed", 2**64), ("max_tokens", "9" * 10**7),
    ],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_parameters_have_a_size(field, value):
    start = time.thread_time()
    with pytest.raises(ValueError, match=field) as caught:
        g.SamplingParams(**{field: value})
    assert time.thread_time() - start < 2 and len(str(caught.value)) < 1000


@pytest.mark.parametrize("field", ["max_tokens", "top_k", "temperature"])
def test_the_largest_numbers_are_served(field):
    value = 1e308 if field == "temperature" else 10**400
    params = g.SamplingParams(**{"max_tokens": 3, "seed": 1, "stop": "e", field: value})
    other = g.SamplingParams(max_tokens=3, seed=2, ignore_eos=True)
    odd, plain = g.Engine(TINY).generate(["Once", "Once"], [params, other])
    assert odd.finish_reason in ("stop", "length") and len(plain.token_ids) == 3


CHAIN = {f"a{i}": {"$ref": f"#/$defs/a{i + 1}"} for i in range(3000)} | {"a3000": {}}
MANY = "rules repeat|too much|too many"


@pytest.mark.parametrize(
    ("make", "source", "says"),
    [
        (Grammar.json_schema, {"$ref": "#/$defs/a0", "$defs": CHAIN}, "more than 500 definitions"),
        (Grammar.json_schema, {"type": "string", "pattern": "^" + "[^a" * 3300 + "$"}, "not serve"),
        (Grammar.json_schema, b"x" * 10**7, "must be a dict"),
        (Grammar.regex, "a" * 10_001, "at most 10000"),
        (Grammar.regex, "a?" * 300, MANY),
        (Grammar.regex, "(a|b?)" * 300, MANY),
        (Grammar.regex, "(|a)" * 300, MANY),
        (Grammar.regex, "(a|)" * 300, MANY),
        (Grammar.ebnf, "root ::= " + '"a"? ' * 300, MANY),
        (Grammar.ebnf, "root ::= " + '("" | "a") ' * 300, MANY),
        (Grammar.ebnf, "root ::= " + "a" * 20_001, "at most 20000"),
    ],
)
def test_a_grammar_that_would_take_long_is_refused_at_once(make, source, says):
    """Each took 1 to 20 s to check or to compile, before it had a bound."""
    start = time.thread_time()
    with pytest.raises(ValueError, match=says):
        make(source)
    assert time.thread_time() - start < 1


def test_an_optional_part_here_and_there_serves():
    Grammar.regex("(-?[0-9]{1,3}(\\.[0-9]?)?,?)" * 50)
    Grammar.ebnf("root ::= " + '"a"? "b" ' * 150)


def test_a_trigger_has_an_end():
    with pytest.raises(ValueError, match="trigger_token_ids has more than 64 ids"):
        Grammar.regex("a", itertools.count())
