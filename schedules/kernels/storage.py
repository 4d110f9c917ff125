"""How a kernel keeps an operator's weights in flash, where that takes fewer bytes than a number of its type each."""

from __future__ import annotations

from dataclasses import dataclass

from tvm_cascade.schedules.tir import PrimFunc

CODED = "a prefix code"  # name of weights that kernels decode (`schedules.rules.coded`)
NAME, SAVED = "cascade_storage", "cascade_saved_bytes"  # attributes of a PrimFunc


@dataclass(frozen=True, slots=True)
class Storage:
    """A form of weights in flash."""

    name: str = ""  # such as '4 bits' or 'float16'; empty for weights as they are
    saved: int = 0  # bytes of weights, scales and tables fewer than of the same weights as int8 or float32


AS_THEY_ARE = Storage()


def with_storage(func: PrimFunc, *stored: Storage) -> PrimFunc:
    """Return the function with the storage its constants have; for several, the first name and all savings."""
    known = [s for s in stored if s.name]
    return func.with_attrs({NAME: known[0].name, SAVED: sum(s.saved for s in known)}) if known else func


def storage_of(func: PrimFunc) -> Storage:
    """Return the storage in a function's attributes."""
    attrs = func.attrs or {}
    return Storage(str(attrs[NAME]), int(attrs[SAVED])) if NAME in attrs else AS_THEY_ARE
