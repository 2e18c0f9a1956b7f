"""Whether a schema can be fulfilled at all, and whether a text of it can be read in few ways.

XGrammar takes `{"properties": {"a": {"$ref": "#"}}, "required": ["a"]}` and would let a model open
objects for ever. It follows all alternatives of one type at once, so that ten `anyOf` inside each
other are a thousand ways, and as much time for one token. Brief, section 5.
"""

from __future__ import annotations

from typing import Any

from g2c_serving.sample.schema_keywords import CLASSES, DEFINITIONS, is_of, target

MAX_WAYS = 256  # alternatives of one type, times those inside them; by $ref, recursion counts once


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


def check_ways(root: Any) -> None:
    """ValueError where alternatives inside alternatives come to more than `MAX_WAYS`."""
    try:
        found = _ways(root, root, {})
    except RecursionError:
        raise ValueError("schema leads through too many $ref inside each other") from None
    if found > MAX_WAYS:
        raise ValueError(
            f"#: anyOf inside anyOf leaves {found} ways to read a text, more than {MAX_WAYS}; "
            "merge the alternatives of one type"
        )


def _ways(root: Any, schema: Any, known: dict[int, int]) -> int:
    """In how many ways a text of `schema` may be read, at most. `known`: by definition, 1 for those
    that are being looked at."""
    if not isinstance(schema, dict):
        return 1
    if "$ref" in schema:
        to = target(root, schema["$ref"], "#")
        if id(to) not in known:
            known[id(to)] = 1
            known[id(to)] = _ways(root, to, known)
        return known[id(to)]
    inside = [*schema.get("properties", {}).values(), *schema.get("prefixItems", [])]
    inside += [schema.get(key) for key in ("items", "additionalProperties")]
    branches = schema.get("anyOf") or schema.get("oneOf") or []
    most = max(_ways(root, inner, known) for inner in [*inside, *branches])
    types = [name for inner in branches for name in _types(root, inner)]
    return most * max((types.count(name) for name in set(types)), default=1)


def _types(root: Any, schema: Any) -> set[str]:
    """The types that a value of `schema` may have."""
    if not isinstance(schema, dict):
        return set(CLASSES)
    if "$ref" in schema:
        return _types(root, target(root, schema["$ref"], "#"))
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return {name for name in CLASSES for value in values if is_of(value, name)}
    branches = schema.get("anyOf") or schema.get("oneOf")
    if branches:
        return {name for inner in branches for name in _types(root, inner)}
    names = schema.get("type", list(CLASSES))
    return {names} if isinstance(names, str) else set(names)
