"""Methods whose results an object keeps."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def cached_method(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method that computes its result once for the same arguments; results live as long as the object."""
    return cast(Any, cached_property(lambda self: cache(partial(method, self))))
