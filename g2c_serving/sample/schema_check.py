"""What a grammar may say: only what XGrammar keeps to the letter, within stated sizes.

XGrammar drops some keywords of JSON schema (`uniqueItems`, `not`, `allOf`), if anything with a line
on stderr, and bends others (`oneOf` becomes `anyOf`). A request would then get JSON that its schema
forbids. So `schema_keywords.py` lists what is allowed: each keyword alone, with each other one of
its type and beside another type, at several magnitudes, was tried with random documents, which the
`jsonschema` library judged. What they showed to be wrong is refused; what none tried may be wrong.

Kept, and narrower than the schema: properties come in their order, and none but those unless
`additionalProperties` says so; numbers have no exponent where they have a bound; strings have no
escapes where they have a pattern or a length; an enum's values are written as the schema has them.

Brief, section 5. `regex_check.py` and `ebnf_check.py` are for the other kinds of grammar.
"""

from __future__ import annotations

import json
from typing import Any

from g2c_serving.sample.schema_ends import check_ends, check_ways
from g2c_serving.sample.schema_forms import Checker
from g2c_serving.sample.schema_keywords import DEFINITIONS

MAX_SCHEMA_CHARS = 200_000  # 300 fields with a paragraph each
MAX_DEPTH = 64  # brackets of the schema's text inside each other: 32 objects


def check_schema(schema: dict[str, Any] | bool | str) -> str:
    """The schema's text. ValueError that names the place in the schema as a JSON pointer, the
    keyword, and what to write instead."""
    root = _parsed(schema)
    Checker(root).schema(root, "#")
    check_ends(root)
    check_ways(root)
    return json.dumps(_as_compiled(root))


def _as_compiled(schema: Any) -> Any:
    """The schema as XGrammar reads it without a word on stderr: `anyOf` for each `oneOf`, the same
    where no two of its schemas share a type, and `items` where `minItems` needs more than are
    named."""
    if not isinstance(schema, dict):
        return schema
    said = {("anyOf" if key == "oneOf" else key): inner for key, inner in schema.items()}
    if said.get("minItems", 0) > len(said.get("prefixItems", [])):
        said.setdefault("items", {})
    for key in ("items", "additionalProperties"):
        if key in said:
            said[key] = _as_compiled(said[key])
    for key in ("anyOf", "prefixItems"):
        if key in said:
            said[key] = [_as_compiled(inner) for inner in said[key]]
    for key in {"properties", *DEFINITIONS} & set(said):
        said[key] = {name: _as_compiled(inner) for name, inner in said[key].items()}
    return said


def _parsed(schema: object) -> Any:
    if not isinstance(schema, dict | bool | str):
        raise ValueError(f"schema={schema!r:.500} must be a dict, or its text")
    try:
        text = schema if isinstance(schema, str) else json.dumps(schema, allow_nan=False)
        if len(text) > MAX_SCHEMA_CHARS:
            raise ValueError(f"it has {len(text)} characters; at most {MAX_SCHEMA_CHARS} serve")
        root = json.loads(text, object_pairs_hook=_once_each, parse_constant=_no_constant)
        json.dumps(root, ensure_ascii=False).encode()
    except (TypeError, ValueError) as err:
        raise ValueError(f"schema is no JSON that serves: {err}; pass a dict, or its text") from err
    except RecursionError:
        raise ValueError(f"schema is nested deeper than {MAX_DEPTH} brackets") from None
    _check_depth(root)
    if not isinstance(root, dict | bool):
        raise ValueError(f"schema={root!r} must be an object, such as {{'type': 'object'}}")
    return root


def _once_each(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name!r} stands twice in one object")
        found[name] = value
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _check_depth(root: Any) -> None:
    layer = [root]
    for _ in range(MAX_DEPTH + 1):
        layer = [
            inner for value in layer if isinstance(value, dict | list)
            for inner in (value.values() if isinstance(value, dict) else value)
        ]  # fmt: skip
        if not layer:
            return
    raise ValueError(f"schema is nested deeper than {MAX_DEPTH} brackets; define parts in '$defs'")
