"""Typed records from objects with the keys as attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, cast, get_type_hints

_Record = TypeVar("_Record")


def filled(record: type[_Record], source: object, **others: object) -> _Record:
    """Fill the `TypedDict` `record`, in key order: keys in `others` from there, every further required key from
    `source`'s attribute.

    Tuples and mappings become lists and dictionaries.
    """
    needed: frozenset[str] = record.__required_keys__  # type: ignore[attr-defined]
    keys = [key for key in get_type_hints(record) if key in others or key in needed]
    return cast("_Record", {key: _plain(others[key] if key in others else getattr(source, key)) for key in keys})


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    return [_plain(one) for one in value] if isinstance(value, (tuple, list)) else value
