"""What a grammar may say is kept to the letter, as `jsonschema` judges; the rest is refused."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import jsonschema
import numpy as np
import pytest

from g2c_serving.paths import DATA
from g2c_serving.process.tokenizer import Tokenizer
from g2c_serving.sample import schema_check
from g2c_serving.sample.grammar import Grammar, as_mask, bitmask
from g2c_serving.sample.grammar_compiler import GrammarCompiler
from g2c_serving.sample.schema_check import check_schema

END = 256
ONE = {"enum": [1]}
KEPT: dict[str, Any] = {
    "true": True,
    "anything": {},
    "null": {"type": "null"},
    "boolean": {"type": "boolean"},
    "string": {"type": "string"},
    "pattern": {"type": "string", "pattern": "^[a-c]{2,3}(x|yz)?\\d+$"},
    "pattern-any": {"type": "string", "pattern": "^a.*[^b]+$"},
    "minLength": {"type": "string", "minLength": 2},
    "maxLength": {"type": "string", "maxLength": 2},
    "lengths": {"type": "string", "minLength": 1, "maxLength": 3},
    "integer": {"type": "integer"},
    "minimum": {"type": "integer", "minimum": 13},
    "maximum": {"type": "integer", "maximum": 1234},
    "range": {"type": "integer", "minimum": -17, "maximum": 204},
    "exclusive": {"type": "integer", "exclusiveMinimum": -5, "exclusiveMaximum": 17},
    "multipleOf": {"type": "integer", "multipleOf": 7},
    "number": {"type": "number"},
    "number-range": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "number-exclusive": {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    "enum": {"enum": [1, 1.5, -2, "a", "é", 'q"\\\n', True, None, [1, "a"], {"a": 1}, 1e-7]},
    "const": {"const": {"b": [1, {"c": None}], "a": 0.1}},
    "enum-typed": {"type": "string", "enum": ["low", "high"]},
    "types": {"type": ["integer", "null", "string"], "minimum": 5, "maxLength": 2},
    "array": {"type": "array"},
    "items": {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
    "prefixItems": {"type": "array", "prefixItems": [{"type": "boolean"}, {"type": "null"}],
                    "items": {"enum": [1, 2]}, "minItems": 1, "maxItems": 4},
    "no-items": {"type": "array", "prefixItems": [{"type": "boolean"}], "items": False},
    "object": {"type": "object"},
    "properties": {"type": "object", "required": ["b"],
                   "properties": {"a": {"type": "boolean"}, "b": {"type": "null"}, 'é"\\/~': ONE}},
    "additional": {"type": "object", "properties": {"a": {"type": "boolean"}},
                   "additionalProperties": {"type": "null"}},
    "anyOf": {"anyOf": [{"type": "integer", "maximum": 3}, {"type": "boolean"}]},
    "oneOf": {"oneOf": [{"type": "integer"}, {"type": ["string", "null"], "maxLength": 3}]},
    "ref": {"$defs": {"n/~": {"type": "object", "required": ["v"],
                              "properties": {"v": ONE, "next": {"$ref": "#/$defs/n~1~0"}}}},
            "$ref": "#/$defs/n~1~0"},
    "ref-root": {"type": "object", "properties": {"v": ONE, "next": {"$ref": "#"}}},
    "notes": {"title": "x", "description": "y", "default": 3, "examples": [1], "type": "null"},
}  # fmt: skip


@cache
def compiler() -> GrammarCompiler:
    tokenizer = Tokenizer.load(DATA / "tokenizers" / "tiny" / "tokenizer.json")
    return GrammarCompiler(tokenizer, tokenizer.vocab_size, [END])


@cache
def kinds_of_tokens() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Tokens that close something, tokens of one byte, and those that often go wrong: (V,) bool."""
    words = [compiler().tokenizer.token_bytes(i) for i in range(compiler().vocab_size)]
    closing = np.array([word in (b'"', b"]", b"}") for word in words])
    telling = np.array([len(word) == 1 and word in b'"\\0159.-' for word in words])
    return closing, np.array([len(word) == 1 for word in words]), telling


def documents(schema: Any, count: int, seed: int = 0, most: int = 300) -> Iterator[str]:
    """Random documents through the engine's mask, with a push towards their end."""
    grammar = Grammar.json_schema(schema)
    compiled = compiler().submit(grammar).result()
    (closing, single, telling), rng = kinds_of_tokens(), np.random.default_rng(seed)
    for _ in range(count):
        state, tokens = compiler().state_of(grammar, compiled), []
        for step in range(most):
            mask = as_mask(bitmask([state], compiler().vocab_size), compiler().vocab_size)
            ids = np.flatnonzero(mask[0].numpy())
            assert len(ids), f"a dead end after {compiler().tokenizer.decode(tokens)!r}"
            push = 0.2 + step / most
            if END in ids and (len(ids) == 1 or rng.random() < push):
                yield b"".join(map(compiler().tokenizer.token_bytes, tokens)).decode(
                    errors="replace"
                )
                break
            ids = ids[ids != END]
            wanted = (closing if rng.random() < push else telling if rng.random() < 0.3
                      else single if rng.random() < 0.6 else None)  # fmt: skip
            few = ids if wanted is None else ids[wanted[ids]]
            tokens.append(int(rng.choice(few if len(few) else ids)))
            state.advance(tokens[-1])
            assert not state.is_broken


def validate(schema: Any, count: int, seed: int = 0, share: float = 0.8) -> None:
    jsonschema.Draft202012Validator.check_schema(schema)
    judge = jsonschema.Draft202012Validator(schema)
    found = 0
    for text in documents(schema, count, seed):
        judge.validate(json.loads(text))
        found += 1
    assert found >= share * count


@pytest.mark.parametrize("name", KEPT)
def test_every_document_fulfils_its_schema(name):
    validate(KEPT[name], 15)


@pytest.mark.slow
@pytest.mark.parametrize("name", KEPT)
def test_every_one_of_many_documents_fulfils_its_schema(name):
    validate(KEPT[name], 1000, seed=1)


# ---- schemas at random ----

LEAVES = [name for name in KEPT if not name.startswith("ref")]


def random_schema(rng: np.random.Generator, depth: int = 0) -> Any:
    """Keywords inside each other."""
    kind = rng.choice(["leaf", "bounds", "object", "array", "anyOf", "ref"])
    if depth > 2 or kind == "leaf":
        return KEPT[str(rng.choice(LEAVES))]
    if kind == "bounds":
        low, high = sorted(rng.integers(-2000, 2000, 2).tolist())
        step = int(rng.choice([1, 1000]))
        name, high = ("integer", high) if step == 1 else ("number", high + 1)
        return {"type": name, "minimum": low / step if step > 1 else low, "maximum": high / step
                if step > 1 else high}  # fmt: skip
    if kind == "ref":
        return {"$ref": "#/$defs/part"}
    inner = [random_schema(rng, depth + 1) for _ in range(rng.integers(1, 4))]
    if kind == "anyOf":
        return {"anyOf": inner}
    if kind == "array":
        low, high = sorted(rng.integers(0, 4, 2).tolist())
        return {"type": "array", "prefixItems": [{"anyOf": inner[1:] or [True]}], "items": inner[0],
                "minItems": low, "maxItems": max(1, high)}  # fmt: skip
    names = [str(name) for name in rng.choice(["a", "b c", 'q"', "é"], len(inner), replace=False)]
    needed = [name for name in names if rng.random() < 0.5]
    more = [{}, {"additionalProperties": False}, {"additionalProperties": {"type": "integer"}}]
    properties = dict(zip(names, inner, strict=True))
    return {"type": "object", "properties": properties, "required": needed,
            **more[rng.integers(3)]}  # fmt: skip


def check_random_schemas(seeds: range) -> None:
    for seed in seeds:
        part = {"type": "object", "properties": {"more": {"$ref": "#/$defs/part"}, "n": ONE}}
        schema = random_schema(np.random.default_rng(seed))
        if isinstance(schema, dict):
            validate({**schema, "$defs": {"part": part}}, 10, seed, share=0)


def test_random_schemas_are_kept():
    check_random_schemas(range(25))


@pytest.mark.slow
def test_many_random_schemas_are_kept():
    check_random_schemas(range(25, 800))


# ---- what is refused ----

REFUSED = [
    ({"type": "array", "uniqueItems": True}, "#/uniqueItems"),
    ({"type": "array", "contains": ONE}, "#/contains"),
    ({"type": "object", "properties": {"a/b": {"not": ONE}}}, "#/properties/a~1b/not"),
    ({"type": "integer", "if": ONE, "then": ONE}, "#/if"),
    ({"type": "object", "dependentRequired": {"a": ["b"]}}, "#/dependentRequired"),
    ({"type": "object", "patternProperties": {"^a": ONE}}, "#/patternProperties"),
    ({"type": "object", "propertyNames": {"pattern": "^a$"}}, "#/propertyNames"),
    ({"type": "object", "minProperties": 1}, "#/minProperties"),
    ({"type": "string", "format": "email"}, "#/format"),
    ({"oneOf": [{"type": "integer"}, {"type": "number"}]}, "#/oneOf/1"),
    ({"allOf": [{"type": "integer"}]}, "#/allOf"),
    ({"$ref": "#/$defs/a", "minimum": 5, "$defs": {"a": {"type": "integer"}}}, "#/minimum"),
    ({"type": "integer", "anyOf": [ONE]}, "#/type"),
    ({"minimum": 3}, "#/minimum"),
    ({"type": "number", "multipleOf": 0.5}, "#/multipleOf"),
    ({"type": "integer", "multipleOf": 101}, "#/multipleOf"),
    ({"type": "string", "pattern": "[a-c]"}, "#/pattern"),
    ({"type": "string", "pattern": "^a(?=b)b$"}, "#/pattern"),
    ({"type": "string", "pattern": "^a|b$"}, "#/pattern"),
    ({"type": "string", "pattern": "^.{2}$"}, "#/pattern"),
    ({"type": "string", "pattern": "^a$b$"}, "#/pattern"),
    ({"type": "string", "pattern": '^"$'}, "#/pattern"),
    ({"type": "string", "pattern": "^a$", "maxLength": 3}, "#"),
    ({"type": "string", "pattern": "^[!-é]+$"}, "#/pattern"),
    ({"type": "string", "pattern": "^[ -\U0001f600]{3}$"}, "#/pattern"),
    ({"type": "string", "pattern": "^\\W+$"}, "#/pattern"),
    ({"type": "string", "pattern": "^[a\\D]+$"}, "#/pattern"),
    ({"type": "string", "pattern": "^[^a\\d]+$"}, "#/pattern"),
    ({"type": "string", "pattern": "^[^\\w]+$"}, "#/pattern"),
    ({"type": "string", "pattern": "^[z-a]$"}, "#/pattern"),
    ({"type": "string", "pattern": "^[a-\\w]$"}, "#/pattern"),
    ({"type": "integer", "multipleOf": 7, "minimum": 100}, "#/multipleOf"),
    ({"type": "integer", "multipleOf": 7, "exclusiveMaximum": 100}, "#/multipleOf"),
    ({"type": ["integer", "number"], "multipleOf": 5}, "#/multipleOf"),
    ({"type": "number", "maximum": 1e10}, "#/maximum"),
    ({"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1e-6}, "#"),
    ({"$schema": "http://json-schema.org/draft-07/schema#", "type": "null"}, "#/$schema"),
    ({"title": 5, "type": "null"}, "#/title"),
    ({"readOnly": 1}, "#/readOnly"),
    ({"$defs": {"a%": ONE}, "$ref": "#/$defs/a%"}, "#/$ref"),
    ({"$defs": {"é": ONE}, "$ref": "#/$defs/é"}, "#/$ref"),
    ({"type": ["null", "null"]}, "#/type"),
    ({"type": "object", "properties": {"a": ONE}, "required": ["a", "a"]}, "#/required"),
    ({"type": "number", "minimum": 1e-12}, "#/minimum"),
    ({"type": "string", "enum": ["a", 1]}, "#/enum"),
    ({"const": 12345678901234567890}, "#/const"),
    ({"type": "object", "properties": {"a": ONE}, "required": ["z"]}, "#/required"),
    ({"$ref": "http://elsewhere/schema"}, "#/$ref"),
    ({"type": "array", "items": [ONE]}, "#/items"),
    ({"type": "array", "prefixItems": [True]}, "#/prefixItems/0"),
    ({"type": "array", "prefixItems": [{}], "maxItems": 0}, "#/prefixItems"),
    ({"type": "word"}, "#/type"),
]  # fmt: skip


@pytest.mark.parametrize("schema, place", REFUSED)
def test_what_is_not_kept_is_refused_with_its_place(schema, place):
    with pytest.raises(ValueError) as err:
        check_schema(schema)
    assert str(err.value).startswith(f"{place}: ")


NOTHING = [
    False,
    {"enum": []},
    {"anyOf": []},
    {"type": []},
    {"type": "integer", "minimum": 5, "maximum": 3},
    {"type": "number", "exclusiveMinimum": 1, "maximum": 1},
    {"type": "integer", "multipleOf": 10, "minimum": 1, "maximum": 9},
    {"type": "array", "minItems": 3, "maxItems": 1},
    {"type": "string", "minLength": 3, "maxLength": 1},
    {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    {"$ref": "#"},
    {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
    {"type": "array", "items": {"$ref": "#"}, "minItems": 1},
    {"type": "array", "items": False, "minItems": 1},
]


@pytest.mark.parametrize("schema", NOTHING)
def test_what_admits_nothing_is_refused(schema):
    with pytest.raises(ValueError, match="#"):
        check_schema(schema)


HOSTILE = [
    "",
    "{",
    "null",
    "3",
    "[]",
    '"x"',
    '{"a": NaN}',
    '{"type": "null"} x',
    "[" * 10**5,
    b"{}",
    None,
    3,
    '{"const": "\\ud800"}',
    '{"type": "null", "type": "integer"}',
    {"const": {1, 2}},
    {"const": 1e999},
    {"const": "x" * schema_check.MAX_SCHEMA_CHARS},
    {"$defs": 3},
    {"properties": 3, "type": "object"},
    {"type": "object", "properties": {str(i): True for i in range(1001)}},
    {"$ref": 3},
    {"$ref": "#/$defs"},
    {"$defs": {"a": 3}},
    {"type": "string", "pattern": 3},
    {"type": "string", "pattern": "^($"},
    {"type": "string", "maxLength": 10**9},
    {"type": "array", "minItems": -1},
    {"type": "integer", "minimum": True},
]


@pytest.mark.parametrize("schema", HOSTILE)
def test_hostile_schemas_are_refused(schema):
    with pytest.raises(ValueError):
        check_schema(schema)


def test_a_deep_schema_is_refused_and_a_wide_one_serves():
    deep: Any = {"type": "null"}
    for _ in range(70):
        deep = {"type": "array", "items": deep}
    with pytest.raises(ValueError, match="nested"):
        check_schema(deep)
    wide = {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(300)}}
    assert json.loads(check_schema(wide)) == wide


# ---- sizes ----


def fields(count: int, inner: Any) -> Any:
    properties = {f"field_{i}": inner for i in range(count)}
    return {"type": "object", "properties": properties, "required": list(properties)}


def nested(depth: int, branches: int) -> Any:
    inner: Any = {"type": "null"}
    for _ in range(depth):
        arrays = [{"type": "array", "items": inner, "maxItems": i} for i in range(branches)]
        inner = {"anyOf": [*arrays, {"type": "null"}]}
    return inner


def by_reference(depth: int) -> Any:
    parts: Any = {f"d{depth}": {"type": "null"}}
    for i in range(depth):
        to = {"$ref": f"#/$defs/d{i + 1}"}
        parts[f"d{i}"] = {"anyOf": [{"type": "array", "items": to}] * 2}
    return {"$ref": "#/$defs/d0", "$defs": parts}


TWENTY = {"type": "string", "pattern": "^[a-z]{1,20}$"}


@pytest.mark.parametrize(
    "schema, words",
    [
        (fields(201, TWENTY), "patterns"),
        (fields(41, {"type": "integer", "multipleOf": 99}), "multipleOf"),
        (fields(2, {"type": "string", "pattern": "^" + "[a-z]*" * 70 + "$"}), "patterns"),
        ({"enum": ["a" * 50_000, "b" * 50_000]}, "characters"),
        (nested(9, 2), "anyOf"),
        (nested(3, 7), "anyOf"),
        (by_reference(9), "anyOf"),
        (by_reference(3000), "schema|\\$ref"),
    ],
)
def test_what_would_compile_for_long_is_refused(schema, words):
    with pytest.raises(ValueError, match=words):
        check_schema(schema)


@pytest.mark.parametrize("schema", [fields(200, TWENTY), nested(8, 2), by_reference(8)])
def test_what_is_just_small_enough_serves(schema):
    check_schema(schema)


def test_prefix_items_beyond_min_items_may_lead_back():
    check_schema({"type": "array", "prefixItems": [{"type": "null"}, {"$ref": "#"}], "minItems": 1})


def test_one_of_is_compiled_as_any_of():
    text = check_schema({"type": "object", "properties": {"oneOf": KEPT["oneOf"]}})
    inner = json.loads(text)["properties"]["oneOf"]
    assert inner == {"anyOf": KEPT["oneOf"]["oneOf"]}
    assert check_schema(text) == text


# ---- keywords in pairs ----

BOUNDS = [-(10**18), -1234, -1, 0, 1, 9, 100, 99_999, 10**9, 10**18]
DECIMALS = [-(10**9), -1234.5, -1.000001, -1e-6, 0, 1e-6, 0.1, 1, 9.99, 100, 123456.789, 10**9]
VALUES: dict[str, dict[str, list[Any]]] = {
    "integer": {key: BOUNDS for key in ("minimum", "exclusiveMinimum", "maximum",
                                        "exclusiveMaximum")} | {"multipleOf": [1, 2, 7, 10, 97]},
    "number": {key: DECIMALS for key in ("minimum", "exclusiveMinimum", "maximum",
                                         "exclusiveMaximum")},
    "string": {"minLength": [0, 1, 3, 100], "maxLength": [0, 1, 3, 100],
               "pattern": ["^[ -~]+$", "^[^a]*$", "^[#-\\]]{2}$", "^[é-ü\\w]+$",
                           "^[à-\U0001f600]{2}$",
                           "^(\\d|[+-]){3}$", "^.*$", "^[!-é]+$", "^[a-é]{2}$"]},
    "array": {"items": [{"type": "integer"}, False, {}], "minItems": [0, 1, 3],
              "maxItems": [0, 1, 3], "prefixItems": [[{"type": "null"}], [{}, {"type": "string"}]]},
    "object": {"properties": [{"a": {"type": "null"}, 'q"': {}}], "required": [["a"], []],
               "additionalProperties": [True, False, {"type": "integer"}]},
}  # fmt: skip


def pairs() -> list[dict[str, Any]]:
    """Each keyword with each other of its type, and with those of another type."""
    said = [{"type": name, **dict(zip(keys, values, strict=True))}
            for name, of in VALUES.items() for keys in itertools.combinations(of, 2)
            for values in itertools.product(*(of[key] for key in keys))]  # fmt: skip
    for one, two in itertools.combinations([*VALUES, "null", "boolean"], 2):
        singles = [{key: value} for name in (one, two) for key, of in VALUES.get(name, {}).items()
                   for value in of]  # fmt: skip
        said += [{"type": [one, two], **more} for more in singles]
    return said


def is_refused(schema: Any) -> bool:
    try:
        check_schema(schema)
    except ValueError:
        return True
    return False


def check_pairs(schemas: list[dict[str, Any]], count: int, capfd: Any) -> None:
    wrong = []
    for i, schema in enumerate(schemas):
        if is_refused(schema):
            continue
        capfd.readouterr()
        try:
            validate(schema, count, seed=i, share=0)
        except Exception as err:
            wrong.append((schema, repr(err)[:120]))
        if said := capfd.readouterr().err:
            wrong.append((schema, said[:200]))
    assert not wrong, "\n".join(map(str, [len(wrong), *wrong[:40]]))


def test_some_pairs_of_keywords_are_kept(capfd):
    check_pairs(pairs()[::29], 4, capfd)


@pytest.mark.slow
def test_all_pairs_of_keywords_are_kept(capfd):
    check_pairs(pairs(), 20, capfd)
