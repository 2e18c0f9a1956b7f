"""Walks through a schema: each keyword in a form that the grammar keeps, else refused by its place.

`schema_keywords.py` says which they are. Brief, section 5.
"""

from __future__ import annotations

import json
import math
from typing import Any

from g2c_serving.sample.regex_check import check_regex
from g2c_serving.sample.schema_keywords import (
    DEFINITIONS,
    DIALECT,
    HIGH,
    KINDS,
    LENGTHS,
    LOW,
    NOTES,
    OF_TYPE,
    bounds,
    escaped,
    is_of,
    numbers,
    refusal,
    target,
)  # fmt: skip

MAX_PROPERTIES = 1_000  # in all of the schema
MAX_DEFINITIONS = 500  # each is looked at with each other
MAX_OPTIONAL = 400  # in one object: XGrammar's time grows with their square, and faster
MAX_SIZE = 4_000  # of all patterns, with repetition written out, and all multipleOf: a ms each
MAX_VALUES = 100_000  # characters of all enum and const
MAX_COUNT = 10_000  # of characters or items
MAX_FACTOR = 100  # of multipleOf: its automaton has as many states
MAX_INTEGER, MAX_NUMBER = 10**18, 10**9  # as a bound


class Checker:
    """Walks a schema; every refusal names where."""

    def __init__(self, root: Any) -> None:
        self.root = root
        self.properties = self.definitions = self.size = self.values = 0

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
            if key not in allowed | set(NOTES) | DEFINITIONS:
                raise ValueError(refusal(at, key, kind))
        self._notes(schema, at)
        for key in DEFINITIONS & set(schema):
            named = self._dict(schema, key, at)
            self.definitions += len(named)
            if self.definitions > MAX_DEFINITIONS:
                raise ValueError(f"{at}: the schema has more than {MAX_DEFINITIONS} definitions")
            for name, inner in named.items():
                self.schema(inner, f"{at}/{key}/{escaped(name)}")
        if kind:
            getattr(self, "_" + kind.lstrip("$").lower())(schema, at)

    def _notes(self, schema: dict[str, Any], at: str) -> None:
        for key in NOTES.keys() & set(schema):
            if not isinstance(schema[key], NOTES[key]):
                raise ValueError(f"{at}/{key}: {schema[key]!r} must be a {NOTES[key].__name__}")
        if (dialect := schema.get("$schema", DIALECT)).removesuffix("#") != DIALECT:
            raise ValueError(f"{at}/$schema: {dialect!r} is another dialect; write {DIALECT!r}")

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
        if len(set(names)) < len(names):
            raise ValueError(f"{at}/type: {schema['type']!r} names one twice")
        return names

    def _ref(self, schema: dict[str, Any], at: str) -> None:
        target(self.root, schema["$ref"], at)

    def _enum(self, schema: dict[str, Any], at: str) -> None:
        for value in self._list(schema, "enum", at):
            self._value(schema, value, f"{at}/enum")

    def _const(self, schema: dict[str, Any], at: str) -> None:
        self._value(schema, schema["const"], f"{at}/const")

    def _value(self, schema: dict[str, Any], value: Any, at: str) -> None:
        self.values += len(json.dumps(value))
        if self.values > MAX_VALUES:
            raise ValueError(f"{at}: the values come to more than {MAX_VALUES} characters")
        for number in numbers(value):
            whole = isinstance(number, int)
            if not (-(2**63) <= number < 2**63 if whole else math.isfinite(number)):
                raise ValueError(f"{at}: {number!r} loses digits; integers have 64 bits")
        if "type" in schema and not any(is_of(value, n) for n in self._types(schema, at)):
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
        for name in self._types(schema, at):
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
            self.size += check_regex(pattern, in_json=True)
        except ValueError as err:
            raise ValueError(f"{at}/pattern: {err}") from None
        self._check_size(at)

    def _check_size(self, at: str) -> None:
        if self.size > MAX_SIZE:
            raise ValueError(
                f"{at}: the schema's patterns, written out, and its multipleOf come to more than "
                f"{MAX_SIZE}; simplify some"
            )

    def _integer(self, schema: dict[str, Any], at: str) -> None:
        for key in (*LOW, *HIGH):
            self._int(schema, key, at, -MAX_INTEGER, MAX_INTEGER)
        self._multiple(schema, at)
        lows, highs = bounds(schema, LOW, 1), bounds(schema, HIGH, -1)
        if lows and highs and max(lows) > min(highs):
            raise ValueError(f"{at}: no integer is within its bounds")

    def _multiple(self, schema: dict[str, Any], at: str) -> None:
        if "multipleOf" not in schema:
            return
        self._int(schema, "multipleOf", at, 1, MAX_FACTOR)
        self.size += schema["multipleOf"]
        self._check_size(at)
        beside = [key for key in (*LOW, *HIGH) if key in schema]
        if "number" in self._types(schema, at) or beside:
            what = beside[0] if beside else "the type 'number'"
            raise ValueError(f"{at}/multipleOf: beside {what} it is not kept; take one of them out")

    def _number(self, schema: dict[str, Any], at: str) -> None:
        for key in (*LOW, *HIGH):
            value = schema.get(key, 0)
            if not is_of(value, "number") or abs(value) > MAX_NUMBER or round(value, 6) != value:
                raise ValueError(
                    f"{at}/{key}: {value!r} must be a number with at most 6 digits behind the "
                    f"point, from -1e9 to 1e9"
                )
        lows = [schema[key] for key in LOW if key in schema]
        highs = [schema[key] for key in HIGH if key in schema]
        is_open = any(key in schema for key in (LOW[1], HIGH[1]))
        if lows and highs and (max(lows) > min(highs) or is_open and max(lows) == min(highs)):
            raise ValueError(f"{at}: no number is within its bounds")
        if lows and highs and is_open and round(min(highs) - max(lows), 6) <= 1e-6:
            raise ValueError(f"{at}: exclusive bounds so close are not kept; leave 2e-6 between")

    def _array(self, schema: dict[str, Any], at: str) -> None:
        self._counts(schema, "minItems", "maxItems", at)
        first = self._list(schema, "prefixItems", at) if "prefixItems" in schema else []
        if len(first) > schema.get("maxItems", MAX_COUNT):
            raise ValueError(f"{at}/prefixItems: more than maxItems; take the last ones out")
        for i, inner in enumerate(first):
            if inner is True:
                raise ValueError(f"{at}/prefixItems/{i}: true is not taken here; write {{}}")
            self.schema(inner, f"{at}/prefixItems/{i}")
        if schema.get("items") is not False:
            self.schema(schema.get("items", True), f"{at}/items")

    def _object(self, schema: dict[str, Any], at: str) -> None:
        names = self._dict(schema, "properties", at) if "properties" in schema else {}
        self.properties += len(names)
        if self.properties > MAX_PROPERTIES:
            raise ValueError(f"{at}: the schema has more than {MAX_PROPERTIES} properties")
        for name, inner in names.items():
            self.schema(inner, f"{at}/properties/{escaped(name)}")
        needed = schema.get("required", [])
        if not isinstance(needed, list) or not all(isinstance(n, str) for n in needed):
            raise ValueError(f"{at}/required: {needed!r} must be a list of names")
        for i, name in enumerate(needed):
            if name in needed[:i]:
                raise ValueError(f"{at}/required: {name!r} stands there twice")
            if name not in names:
                raise ValueError(f"{at}/required: {name!r} is not among the properties; add it")
        if len(names) - len(set(needed)) > MAX_OPTIONAL:
            raise ValueError(f"{at}: more than {MAX_OPTIONAL} properties are not in 'required'")
        if schema.get("additionalProperties") is not False:
            self.schema(schema.get("additionalProperties", True), f"{at}/additionalProperties")

    def _counts(self, schema: dict[str, Any], low: str, high: str, at: str) -> None:
        for key in (low, high):
            self._int(schema, key, at, 0, MAX_COUNT)
        if schema.get(low, 0) > schema.get(high, MAX_COUNT):
            raise ValueError(f"{at}: {low} is greater than {high}")

    def _int(self, schema: dict[str, Any], key: str, at: str, low: int, high: int) -> None:
        if key in schema and not (is_of(schema[key], "integer") and low <= schema[key] <= high):
            raise ValueError(f"{at}/{key}: {schema[key]!r} must be an integer, {low} to {high}")

    def _list(self, schema: dict[str, Any], key: str, at: str) -> list[Any]:
        if not isinstance(schema[key], list) or not schema[key]:
            raise ValueError(f"{at}/{key}: {schema[key]!r} must be a list with an element or more")
        return schema[key]

    def _dict(self, schema: dict[str, Any], key: str, at: str) -> dict[str, Any]:
        if not isinstance(schema[key], dict):
            raise ValueError(f"{at}/{key}: {schema[key]!r} must be an object")
        return schema[key]
