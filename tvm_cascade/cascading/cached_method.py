"""A decorator that caches a method's results in the object."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property, partial
from typing import Any, Concatenate, ParamSpec, TypeVar, cast
from weakref import WeakSet

S = TypeVar("S")
P = ParamSpec("P")
R = TypeVar("R")

_caching = WeakSet[Any]()  # the objects that keep results


def cached_method(method: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """Cache a method's results by arguments.

    An object that keeps results refers to itself: the results are freed by `drop_results`, or with the object by a
    search for cycles.
    """

    def made(self: Any) -> Callable[..., Any]:
        _caching.add(self)
        return cache(partial(method, self))

    made.__dict__["cached_method"] = True
    return cast(Any, cached_property(made))


def drop_results() -> None:
    """Drop all cached methods' results; objects in use compute them again."""
    for owner in list(_caching):
        for name in list(vars(owner)):
            if _is_cached_method(type(owner), name):
                vars(owner).pop(name, None)
    _caching.clear()


@cache
def _is_cached_method(kind: type, name: str) -> bool:
    return bool(getattr(getattr(getattr(kind, name, None), "func", None), "__dict__", {}).get("cached_method"))
