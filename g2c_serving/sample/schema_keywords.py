"""The keywords of JSON schema that a grammar keeps to the letter, and what is said of the others.

The list comes from an experiment: random documents through XGrammar's mask, judged by `jsonschema`.
Brief, section 5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

TEXTS = {"title", "description", "$comment", "$schema"}
# What says nothing, with the types that it has.
NOTES: dict[str, Any] = {
    **dict.fromkeys(TEXTS, str), **dict.fromkeys(("deprecated", "readOnly", "writeOnly"), bool),
    "examples": list, "default": object,
}  # fmt: skip
DIALECT = "https://json-schema.org/draft/2020-12/schema"
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
    "multipleOf": "it is kept for integers only",
    "patternProperties": "name the properties in 'properties'",
    "propertyNames": "name the properties in 'properties'",
    "minProperties": "name them in 'required'",
    "maxProperties": "leave it out: the properties named are the only ones",
}


def target(root: Any, ref: object, at: str) -> Any:
    """What a `$ref` stands for: the whole schema, or a definition of it."""
    if isinstance(ref, str) and ("%" in ref or not ref.isascii()):
        raise ValueError(f"{at}/$ref: {ref!r} may have no % and only ASCII; rename the definition")
    if ref == "#":
        return root
    parts = ref.split("/") if isinstance(ref, str) else []
    if len(parts) == 3 and parts[0] == "#" and parts[1] in DEFINITIONS:
        found = root.get(parts[1])
        name = parts[2].replace("~1", "/").replace("~0", "~")
        if isinstance(found, dict) and name in found:
            return found[name]
    raise ValueError(f"{at}/$ref: {ref!r} is not defined; '#' and '#/$defs/name' serve")


def escaped(name: str) -> str:
    return name.replace("~", "~0").replace("/", "~1")


def numbers(value: Any) -> Iterator[int | float]:
    """All numbers in a JSON value."""
    if isinstance(value, int | float):
        yield value
    elif isinstance(value, dict | list):
        for inner in value.values() if isinstance(value, dict) else value:
            yield from numbers(inner)


def is_of(value: Any, name: str) -> bool:
    """Whether a JSON value is of the type `name`. 1.0 is no integer here, and true no number."""
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, CLASSES[name])


def bounds(schema: dict[str, Any], keys: tuple[str, str], inwards: int) -> list[int]:
    """An integer's bounds on one side, the exclusive one moved inwards."""
    closed, exclusive = keys
    found = [schema[closed]] if closed in schema else []
    return found + ([schema[exclusive] + inwards] if exclusive in schema else [])


def refusal(at: str, key: str, kind: str) -> str:
    of = [name for name, keys in OF_TYPE.items() if key in keys]
    if key in KINDS or (kind != "type" and of):
        if kind:
            remedy = f"beside {kind!r} it is not kept; write it in a schema of its own"
        else:
            remedy = f'without a type it is not kept; add "type": "{of[0]}"'
    elif of:
        remedy = f"it says something about {' and '.join(of)} only; take it out"
    else:
        remedy = f"the grammar does not keep it; {ADVICE.get(key, 'take it out')}"
    return f"{at}/{key}: {remedy}"
