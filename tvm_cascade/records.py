"""Convert frozen dataclasses to JSON and back by field types, for storage in a cache.

A dataclass is the list of the fields in order, a tuple a list, `bytes` a text in Latin-1. In fields with type `object`,
lists become tuples again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from tvm_cascade.messages import printable

Record = TypeVar("Record")


def to_json(value: Any) -> Any:
    """Convert `value` to JSON values. Raises `TypeError` unless it is a record, number, text, tuple or mapping with
    text keys.
    """
    if value is None or isinstance(value, (str, int, float)):
        return value
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, bytes):
        return value.decode("latin-1")
    if is_dataclass(value):
        return [to_json(getattr(value, f.name)) for f in fields(value)]
    if isinstance(value, tuple):
        return [to_json(v) for v in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: to_json(v) for key, v in value.items()}
    raise TypeError(f"{type(value).__name__} cannot be recorded")


def from_json(kind: type[Record], data: Any) -> Record:
    """Convert `data`, made by `to_json`, back to a record of class `kind`. Raises `TypeError` or `ValueError` for other
    data.
    """
    names, types = _fields(kind)
    return kind(**{name: _value(types[name], given) for name, given in zip(names, data, strict=True)})


def checked(record: Record) -> Record:
    """Return `record`; raise `TypeError` for a field whose value is not of its type, also inside of records in it."""
    names, types = _fields(type(record))
    for name in names:
        if not _fits(types[name], getattr(record, name)):
            raise TypeError(f"{name}: {printable(repr(getattr(record, name)))}")
    return record


def _fits(kind: Any, value: Any) -> bool:
    """Return True if `value` is of the annotated type `kind`; booleans are no numbers, integers are floats as well."""
    if get_origin(kind) in (Union, UnionType):
        return any(_fits(one, value) for one in get_args(kind))
    if is_dataclass(kind):
        return isinstance(value, cast(type, kind)) and checked(value) is value
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        inner = inner[:1] * len(value) if inner[1:] == (...,) and isinstance(value, tuple) else inner
        return isinstance(value, tuple) and len(value) == len(inner) and all(map(_fits, inner, value))
    if kind in (int, float):
        return isinstance(value, (int, kind)) and not isinstance(value, bool)
    return not isinstance(kind, type) or kind is object or isinstance(value, kind)


@cache
def _fields(kind: type) -> tuple[tuple[str, ...], Mapping[str, Any]]:
    return tuple(f.name for f in fields(kind)), get_type_hints(kind)


def _value(kind: Any, data: Any) -> Any:
    if get_origin(kind) in (Union, UnionType):
        kinds = [k for k in get_args(kind) if k is not NoneType]
        return None if data is None else _value(kinds[0] if len(kinds) == 1 else object, data)
    if is_dataclass(kind):
        return from_json(kind, data)  # type: ignore[arg-type]
    if get_origin(kind) is tuple:
        inner = get_args(kind)
        if inner[1:] == (...,):
            return tuple(data) if inner[0] in (int, str, float) else tuple(_value(inner[0], v) for v in data)
        return tuple(_value(k, v) for k, v in zip(inner, data, strict=True))
    if isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping):  # type: ignore[arg-type]
        return {key: _value(get_args(kind)[1], v) for key, v in data.items()}
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    return data.encode("latin-1") if kind is bytes else _untyped(data) if kind in (object, Any) else data


def _untyped(data: Any) -> Any:
    if isinstance(data, list):
        return tuple(_untyped(v) for v in data)
    return {key: _untyped(v) for key, v in data.items()} if isinstance(data, dict) else data
