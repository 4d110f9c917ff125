"""A decorator that caches the results of a method in its object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")


def cached_method(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Cache the results of a method by its arguments; they are freed with the object, by a search for cycles."""
    return cast(Any, cached_property(lambda self: cache(partial(method, self))))
