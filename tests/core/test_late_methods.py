"""Dataclasses whose methods are made when they are first used are like any others."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
from dataclasses import FrozenInstanceError, dataclass, replace

import pytest

from tvm_cascade.late_methods import make_methods_late

with pytest.MonkeyPatch.context() as patch:
    if hasattr(dataclasses, "_create_fn"):
        patch.setattr(dataclasses, "_create_fn", dataclasses._create_fn)  # type: ignore[attr-defined]
    make_methods_late()

    @dataclass(frozen=True, slots=True, order=True)
    class Point:
        x: int
        ys: tuple[int, ...] = ()

        def __post_init__(self) -> None:
            assert self.x >= 0

    class Below(Point):
        """A class that inherits methods that are not made yet."""


def test_methods_work_as_those_that_are_made_at_once() -> None:
    inherited, point = Below(2), Point(1, (3,))
    assert str(inherited) == "Below(x=2, ys=())"
    assert str(point) == "Point(x=1, ys=(3,))" and point == Point(1, (3,)) and point != Point(2)
    assert hash(point) == hash(Point(1, (3,))) and len({point, Point(1, (3,))}) == 1
    assert Point(1) < Point(2) and replace(point, x=4) == Point(4, (3,))
    assert pickle.loads(pickle.dumps(point)) == point
    assert Point.__init__.__qualname__ == "Point.__init__"
    assert list(inspect.signature(Point).parameters) == ["x", "ys"]


def test_what_is_refused_stays_refused() -> None:
    with pytest.raises(FrozenInstanceError):
        Point(1).x = 2  # type: ignore[misc]
    with pytest.raises(TypeError, match="missing 1 required"):
        Point()  # type: ignore[call-arg]
    with pytest.raises(AssertionError):
        Point(-1)


@pytest.mark.skipif(
    not hasattr(dataclasses, "_create_fn"), reason="this Python compiles all methods of a class at once"
)
def test_a_method_is_made_once_and_kept_by_its_class() -> None:
    with pytest.MonkeyPatch.context() as patch:
        create = dataclasses._create_fn  # type: ignore[attr-defined]
        made: list[str] = []

        def counted(name: str, *args: object, **kwargs: object) -> object:
            made.append(name)
            return create(name, *args, **kwargs)

        patch.setattr(dataclasses, "_create_fn", counted)
        make_methods_late()

        @dataclass(frozen=True)
        class Pair:
            """A class with a text of its own, which is not made of the signature of `__init__`."""

            a: int

        assert made == []
        assert Pair(1) == Pair(1) and Pair(2) != Pair(1)
        assert made == ["__init__", "__eq__"]
