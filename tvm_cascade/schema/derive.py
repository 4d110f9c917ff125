"""JSON schemas (draft 2020-12) for typed records: the output of `tvm-cascade schema COMMAND`."""

from __future__ import annotations

from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from tvm_cascade.schema.refusal import Refusal
from tvm_cascade.schema.units import AtLeast, Unit

VERSION = 1  # of all schemas: raised where a key goes, or means something else; a new key leaves it
_DRAFT = "https://json-schema.org/draft/2020-12/schema"
_SIMPLE = {int: "integer", float: "number", str: "string", bool: "boolean", NoneType: "null"}

Schema = dict[str, Any]


def schema_of(command: str, record: type) -> Schema:
    """Derive the schema of the objects printed by `command`, with the type `record`.

    If the command refuses, an object of the definition `Refusal` is printed instead.
    """
    definitions: dict[str, Schema] = {}
    own = _object(record, definitions)
    _of(Refusal, definitions)
    head = {
        "$schema": _DRAFT,
        "$id": f"urn:tvm-cascade:schema:{command}:{VERSION}",
        "title": f"tvm-cascade {command} --json",
    }
    return head | own | {"$defs": dict(sorted(definitions.items()))}


def _object(record: type, definitions: dict[str, Schema]) -> Schema:
    """Derive the schema of a `TypedDict`, with exactly the record's keys."""
    types = get_type_hints(record, include_extras=True)
    return {
        "description": " ".join((record.__doc__ or "").split()),
        "type": "object",
        "properties": {name: _of(kind, definitions) for name, kind in types.items()},
        "required": [name for name in types if name in record.__required_keys__],  # type: ignore[attr-defined]
        "additionalProperties": False,
    }


def _of(kind: Any, definitions: dict[str, Schema]) -> Schema:
    """Derive the schema of a value; records inside become `definitions` under their class names."""
    if get_origin(kind) is Annotated:
        inner, *notes = get_args(kind)
        return _of(inner, definitions) | _told(notes)
    if is_typeddict(kind):
        if kind.__name__ not in definitions:
            definitions[kind.__name__] = {}  # for a record that holds itself
            definitions[kind.__name__] = _object(kind, definitions)
        return {"$ref": f"#/$defs/{kind.__name__}"}
    origin, inside = get_origin(kind), get_args(kind)
    if origin in (Union, UnionType):
        return {"anyOf": [_of(one, definitions) for one in inside]}
    if origin is Literal:
        return {"enum": list(inside)}
    if origin is list:
        return {"type": "array", "items": _of(inside[0], definitions)}
    if isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": _of(inside[1], definitions)}
    return {"type": _SIMPLE[kind]}


def _told(notes: list[object]) -> Schema:
    """Derive limits and description from the notes on a value's type: a text, the unit, the least value."""
    found: Schema = {}
    for note in notes:
        if isinstance(note, AtLeast):
            found["minimum"] = note.value
    text = "".join(f" ({one.name})" if isinstance(one, Unit) else "" for one in notes)
    text = "".join(one for one in notes if isinstance(one, str)) + text
    return found | ({"description": text.strip()} if text else {})
