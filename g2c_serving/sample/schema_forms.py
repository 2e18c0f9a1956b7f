"""The keywords of JSON schema that a grammar keeps to the letter, and in which forms.

The list comes from an experiment: random documents through XGrammar's mask, judged by `jsonschema`.
A keyword that is not here is refused, with what to write instead. Brief, section 5.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from g2c_serving.sample.regex_check import check_regex

MAX_PROPERTIES = 1_000  # in all of the schema
MAX_COUNT = 10_000  # of characters or items
MAX_FACTOR = 100  # of multipleOf: its automaton has as many states
MAX_BOUND = 10**15  # of numbers with a fraction; integers have 64 bits

TEXTS = {"title", "description", "$comment", "$schema"}
NOTES = TEXTS | {"default", "examples", "deprecated", "readOnly", "writeOnly"}  # say nothing
DEFINITIONS = {"$defs", "definitions"}
LOW, HIGH = ("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")
LENGTHS = ("minLength", "maxLength")
OF_TYPE: dict[str, set[str]] = {
    "null": set(),
    "boolean": set(),
    "string": {"pattern", *LENGTHS},
    "integer": {*LOW, *HIGH, "multipleOf"},
    "number": {*LOW, *HIGH},
    "array": {"items", "prefixItems", "minItems", "maxItems"},
    "object": {"properties", "required", "additionalProperties"},
}
KINDS = ("$ref", "enum", "const", "anyOf", "oneOf", "type")  # one of these a schema
CLASSES: dict[str, Any] = {
    "null": type(None), "boolean": bool, "string": str, "integer": int, "number": (int, float),
    "array": list, "object": dict,
}  # fmt: skip
ADVICE = {
    "allOf": "merge its schemas into one",
    "format": "write it as a pattern, such as '^[0-9]{4}-[0-9]{2}-[0-9]{2}$'",
    "uniqueItems": "leave it out and check the result",
    "multipleOf": f"it is kept for integers only, from 1 to {MAX_FACTOR}",
    "patternProperties": "name the properties in 'properties'",
    "propertyNames": "name the properties in 'properties'",
    "minProperties": "name them in 'required'",
    "maxProperties": "leave it out: the properties named are the only ones",
}


class Checker:
    """Walks a schema; every refusal names where."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.properties = 0

    def schema(self, schema: Any, at: str) -> None:
        if schema is True:
            return
        if not isinstance(schema, dict):
            what = "admits nothing" if schema is False else "is no schema"
            raise ValueError(f"{at}: {schema!r} {what}; write an object such as {{}}")
        kinds = [key for key in KINDS if key in schema]
        kind = kinds[0] if kinds else ""
        allowed = self._allowed(schema, kind, at)
        for key in schema:
            if key not in allowed | NOTES | DEFINITIONS:
                raise ValueError(_refusal(at, key, kind))
        for key in DEFINITIONS & set(schema):
            for name, inner in self._dict(schema, key, at).items():
                self.schema(inner, f"{at}/{key}/{_escaped(name)}")
        if kind:
            getattr(self, "_" + kind.lstrip("$").lower())(schema, at)

    def _allowed(self, schema: dict[str, Any], kind: str, at: str) -> set[str]:
        if kind in ("enum", "const"):
            return {kind, "type"}
        if kind != "type":
            return {kind}
        names = self._types(schema, at)
        return set().union({"type"}, *(OF_TYPE[name] for name in names))

    def _types(self, schema: dict[str, Any], at: str) -> list[str]:
        names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
        if not names or not all(isinstance(n, str) and n in OF_TYPE for n in names):
            raise ValueError(f"{at}/type: {schema['type']!r} is not one or more of {list(OF_TYPE)}")
        return names

    def _ref(self, schema: dict[str, Any], at: str) -> None:
        target(self.root, schema["$ref"], at)

    def _enum(self, schema: dict[str, Any], at: str) -> None:
        values = self._list(schema, "enum", at)
        for value in values:
            self._value(schema, value, f"{at}/enum")

    def _const(self, schema: dict[str, Any], at: str) -> None:
        self._value(schema, schema["const"], f"{at}/const")

    def _value(self, schema: dict[str, Any], value: Any, at: str) -> None:
        for number in _numbers(value):
            whole = isinstance(number, int)
            if not (-(2**63) <= number < 2**63 if whole else math.isfinite(number)):
                raise ValueError(f"{at}: {number!r} loses digits; integers have 64 bits")
        if "type" in schema and not any(_is(value, n) for n in self._types(schema, at)):
            raise ValueError(f"{at}: {value!r} is not of the type {schema['type']!r}")

    def _anyof(self, schema: dict[str, Any], at: str) -> None:
        for i, inner in enumerate(self._list(schema, "anyOf", at)):
            self.schema(inner, f"{at}/anyOf/{i}")

    def _oneof(self, schema: dict[str, Any], at: str) -> None:
        taken: set[str] = set()
        for i, inner in enumerate(self._list(schema, "oneOf", at)):
            self.schema(inner, f"{at}/oneOf/{i}")
            typed = isinstance(inner, dict) and "type" in inner
            names = set(self._types(inner, at)) if typed else set(OF_TYPE)
            names = {"number" if name == "integer" else name for name in names}
            if names & taken:
                raise ValueError(
                    f"{at}/oneOf/{i}: a value can be of this schema and of one before it, which "
                    "oneOf forbids and the grammar could not; give each a type of its own, or "
                    "write anyOf"
                )
            taken |= names

    def _type(self, schema: dict[str, Any], at: str) -> None:
        for name in dict.fromkeys(self._types(schema, at)):
            if name in ("string", "integer", "number", "array", "object"):
                getattr(self, "_" + name)(schema, at)

    def _string(self, schema: dict[str, Any], at: str) -> None:
        self._counts(schema, *LENGTHS, at)
        if "pattern" not in schema:
            return
        if any(key in schema for key in LENGTHS):
            raise ValueError(f"{at}: pattern with {' or '.join(LENGTHS)} is not kept; count in it")
        pattern = schema["pattern"]
        try:
            check_regex(pattern, in_json=True)
        except ValueError as err:
            raise ValueError(f"{at}/pattern: {err}") from None

    def _integer(self, schema: dict[str, Any], at: str) -> None:
        for key in (*LOW, *HIGH):
            self._int(schema, key, at, -(2**63), 2**63 - 1)
        self._int(schema, "multipleOf", at, 1, MAX_FACTOR)
        lows, highs = _bounds(schema, LOW, 1), _bounds(schema, HIGH, -1)
        low, high = max(lows, default=-math.inf), min(highs, default=math.inf)
        step = schema.get("multipleOf", 1)
        if lows and highs and low + -low % step > high:
            raise ValueError(f"{at}: no integer is within its bounds")

    def _number(self, schema: dict[str, Any], at: str) -> None:
        for key in (*LOW, *HIGH):
            value = schema.get(key, 0)
            if not _is(value, "number") or abs(value) > MAX_BOUND or round(value, 6) != value:
                raise ValueError(
                    f"{at}/{key}: {value!r} must be a number with at most 6 digits behind the "
                    f"point, from -1e15 to 1e15"
                )
        lows = [schema[key] for key in LOW if key in schema]
        highs = [schema[key] for key in HIGH if key in schema]
        is_open = any(key in schema for key in (LOW[1], HIGH[1]))
        if lows and highs and (max(lows) > min(highs) or is_open and max(lows) == min(highs)):
            raise ValueError(f"{at}: no number is within its bounds")

    def _array(self, schema: dict[str, Any], at: str) -> None:
        self._counts(schema, "minItems", "maxItems", at)
        first = self._list(schema, "prefixItems", at) if "prefixItems" in schema else []
        for i, inner in enumerate(first):
            self.schema(inner, f"{at}/prefixItems/{i}")
        if schema.get("items") is not False:
            self.schema(schema.get("items", True), f"{at}/items")

    def _object(self, schema: dict[str, Any], at: str) -> None:
        names = self._dict(schema, "properties", at) if "properties" in schema else {}
        self.properties += len(names)
        if self.properties > MAX_PROPERTIES:
            raise ValueError(f"{at}: the schema has more than {MAX_PROPERTIES} properties")
        for name, inner in names.items():
            self.schema(inner, f"{at}/properties/{_escaped(name)}")
        needed = schema.get("required", [])
        if not isinstance(needed, list) or not all(isinstance(n, str) for n in needed):
            raise ValueError(f"{at}/required: {needed!r} must be a list of names")
        for name in needed:
            if name not in names:
                raise ValueError(f"{at}/required: {name!r} is not among the properties; add it")
        if schema.get("additionalProperties") is not False:
            self.schema(schema.get("additionalProperties", True), f"{at}/additionalProperties")

    def _counts(self, schema: dict[str, Any], low: str, high: str, at: str) -> None:
        for key in (low, high):
            self._int(schema, key, at, 0, MAX_COUNT)
        if schema.get(low, 0) > schema.get(high, MAX_COUNT):
            raise ValueError(f"{at}: {low} is greater than {high}")

    def _int(self, schema: dict[str, Any], key: str, at: str, low: int, high: int) -> None:
        if key in schema and not (_is(schema[key], "integer") and low <= schema[key] <= high):
            raise ValueError(f"{at}/{key}: {schema[key]!r} must be an integer, {low} to {high}")

    def _list(self, schema: dict[str, Any], key: str, at: str) -> list[Any]:
        if not isinstance(schema[key], list) or not schema[key]:
            raise ValueError(f"{at}/{key}: {schema[key]!r} must be a list with an element or more")
        return schema[key]

    def _dict(self, schema: dict[str, Any], key: str, at: str) -> dict[str, Any]:
        if not isinstance(schema[key], dict):
            raise ValueError(f"{at}/{key}: {schema[key]!r} must be an object")
        return schema[key]


def target(root: Any, ref: object, at: str) -> Any:
    """What a `$ref` stands for: the whole schema, or a definition of it."""
    if ref == "#":
        return root
    parts = ref.split("/") if isinstance(ref, str) else []
    if len(parts) == 3 and parts[0] == "#" and parts[1] in DEFINITIONS:
        found = root.get(parts[1])
        name = parts[2].replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            return found[name]
    raise ValueError(f"{at}/$ref: {ref!r} is not defined; '#' and '#/$defs/name' serve")


def _escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def _numbers(value: Any) -> Iterator[int | float]:
    """All numbers in a JSON value."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from _numbers(inner)


def _is(value: Any, name: str) -> bool:
    """Whether a JSON value is of the type `name`. 1.0 is no integer here, and true no number."""
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, CLASSES[name])


def _bounds(schema: dict[str, Any], keys: tuple[str, str], inwards: int) -> list[int]:
    """An integer's bounds on one side, the exclusive one moved inwards."""
    closed, exclusive = keys
    found = [schema[closed]] if closed in schema else []
    return found + ([schema[exclusive] + inwards] if exclusive in schema else [])


def _refusal(at: str, key: str, kind: str) -> str:
    of = [name for name, keys in OF_TYPE.items() if key in keys]
    if key in KINDS or (kind != "type" and of):
        beside = f"beside {kind!r} it is not kept; " if kind else ""
        remedy = (
            f"{beside}write it in a schema of its own"
            if kind
            else (f'without a type it is not kept; add "type": "{of[0]}"')
        )
    elif of:
        remedy = f"it says something about {' and '.join(of)} only; take it out"
    else:
        remedy = f"the grammar does not keep it; {ADVICE.get(key, 'take it out')}"
    return f"{at}/{key}: {remedy}"
