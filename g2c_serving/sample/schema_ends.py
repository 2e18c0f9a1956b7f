"""Whether a schema can be fulfilled at all: a `$ref` that only leads back to itself cannot.

XGrammar takes `{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}` and would let a model open
objects for ever. Brief, section 5.
"""

from __future__ import annotations

from typing import Any

from g2c_serving.sample.schema_keywords import DEFINITIONS, target


def check_ends(root: Any) -> None:
    """ValueError if some definition has no finite document, or stands for itself."""
    if not isinstance(root, dict):
        return
    named = {id(root): ("#", root)}
    for key in DEFINITIONS & set(root):
        for name, inner in root[key].items():
            named[id(inner)] = (f"#/{key}/{name}", inner)
    _check_loops(root, named)
    ends: set[int] = set()  # of the named schemas those that are known to end
    while new := {i for i, (_, s) in named.items() if i not in ends and _ends(root, s, ends)}:
        ends |= new
    for i, (at, _) in named.items():
        if i not in ends:
            raise ValueError(
                f"{at}: no finite document fulfils it, as it needs itself; make a property optional"
            )


def _ends(root: Any, schema: Any, ends: set[int]) -> bool:
    """Whether a document fulfils `schema`, if those that `ends` names have one."""
    if not isinstance(schema, dict):
        return schema is not False
    if "$ref" in schema:
        return id(target(root, schema["$ref"], "#")) in ends
    for key in ("anyOf", "oneOf"):
        if key in schema:
            return any(_ends(root, inner, ends) for inner in schema[key])
    if "type" not in schema:
        return True
    names = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return any(_type_ends(root, schema, name, ends) for name in names)


def _type_ends(root: Any, schema: dict[str, Any], name: str, ends: set[int]) -> bool:
    if name == "object":
        needed = [schema["properties"][key] for key in schema.get("required", [])]
    elif name == "array":
        count = schema.get("minItems", 0)
        needed = schema.get("prefixItems", [])[:count]
        if count > len(needed):
            needed = [*needed, schema.get("items", True)]
    else:
        return True
    return all(_ends(root, inner, ends) for inner in needed)


def _check_loops(root: Any, named: dict[int, tuple[str, Any]]) -> None:
    """ValueError for a definition that leads to itself with nothing written on the way."""
    after = {i: set(_next(root, schema)) for i, (_, schema) in named.items()}
    for i, (at, _) in named.items():
        seen: set[int] = set()
        waiting = list(after[i])
        while waiting:
            one = waiting.pop()
            if one not in seen:
                seen.add(one)
                waiting += after.get(one, ())
        if i in seen:
            raise ValueError(f"{at}: it stands for itself, by $ref; take the circle out")


def _next(root: Any, schema: Any) -> list[int]:
    """The named schemas that `schema` may stand for without a character of its own."""
    if not isinstance(schema, dict):
        return []
    if "$ref" in schema:
        return [id(target(root, schema["$ref"], "#"))]
    inner = [one for key in ("anyOf", "oneOf") for one in schema.get(key, [])]
    return [found for one in inner for found in _next(root, one)]
