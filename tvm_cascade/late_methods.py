"""Let dataclasses make their methods at first use, since a command uses few of them.

Python compiles about six methods for each frozen dataclass, a tenth of a millisecond each, and the modules of `plan`
have 270 such classes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any


class _LateMethod:
    """A method that `make` builds at first use; the class then holds the built method instead."""

    def __init__(self, name: str, make: Callable[[], Any]) -> None:
        self.__name__, self._make, self._made = name, make, None

    def __get__(self, instance: object, owner: type) -> Any:
        made = self._method()
        for cls in owner.__mro__:
            if cls.__dict__.get(self.__name__) is self:
                made.__qualname__ = f"{cls.__qualname__}.{self.__name__}"
                type.__setattr__(cls, self.__name__, made)
        return made.__get__(instance, owner)

    def __call__(self, *args: Any) -> Any:
        return self._method()(*args)

    def _method(self) -> Any:
        if self._made is None:
            self._made = self._make()
        return self._made


def make_methods_late() -> None:
    """Make the methods of all further dataclasses late, in Python versions that compile each by itself (3.10 to 3.12)."""
    create = getattr(dataclasses, "_create_fn", None)
    if create is not None:

        def late(name: str, *args: Any, **kwargs: Any) -> _LateMethod:
            return _LateMethod(name, partial(create, name, *args, **kwargs))

        setattr(dataclasses, "_create_fn", late)  # noqa: B010 -- type checkers know no private function
