"""Operations compilers compute once: repeated in a statement, or, for floats, moved before a loop without changes.

Expressions repeat shared parts, and without an FPU an operation takes dozens of instructions. Integers are not moved
before loops: the kernels' own code does that, and indices count nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

from tvm_cascade.schedules.tir import collect, dtype_of, ir, tirx, tvm_ffi


@dataclass
class Loop:
    """A loop being read. Its changes are looked up when a float operation asks."""

    stmt: Any
    before: float = 0.0  # instructions that come before its first iteration
    known: set[int] = field(default_factory=set)  # structural hashes of what is computed there

    @cached_property
    def stored(self) -> list[Any]:
        """Return the buffers stored to in the body."""
        return [s.buffer for s in collect(self.stmt.body, tirx.BufferStore)]

    @cached_property
    def called(self) -> list[Any]:
        """Return the body's calls in statement position."""
        return [v.value for v in collect(self.stmt.body, tirx.Evaluate) if type(v.value) is ir.Call]

    @cached_property
    def changes(self) -> set[int]:
        """Hash the variables and buffers assigned in the body."""
        body = self.stmt.body
        variables = [
            *(s.loop_var for s in [self.stmt, *collect(body, tirx.For)]),
            *(s.var for s in collect(body, tirx.Bind)),
            *(s.buffer for s in collect(body, tirx.AllocBuffer)),
            *(v for call in self.called for v in collect(call, tirx.Var)),
        ]
        return {hash(v) for v in (*self.stored, *variables)}

    def stores_beyond(self, local: set[int]) -> bool:
        """Test whether the body stores to memory, outside these buffers, that may be loaded there."""
        return bool(self.called) or any(hash(b) not in local for b in self.stored)


class ComputedOnce:
    """The cost of an operation at one position; `local` are hashes of buffers without pointers to them."""

    def __init__(self, local: set[int]) -> None:
        self.local = local
        self.loops: list[Loop] = []  # open ones, the outermost first
        self._computed: dict[Any, Any] = {}  # by kind of operation: the first one that the statement has computed
        self._known: dict[Any, set[int]] = {}  # their structural hashes, of kinds of which it has several

    def begin(self) -> None:
        """Start a statement."""
        self._computed.clear()
        self._known.clear()

    def again(self, value: Any) -> bool:
        """Return True if the statement has already computed an expression; record the expression."""
        kind = type(value)
        kind = hash(value.op) if kind is ir.Call else kind
        if kind not in self._computed:
            self._computed[kind] = value
            return False
        known = self._known.get(kind)
        if known is None:
            known = self._known[kind] = {tvm_ffi.structural_hash(self._computed[kind])}
        key = tvm_ffi.structural_hash(value)
        if key in known:
            return True
        known.add(key)
        return False

    def open(self, stmt: Any) -> None:
        """Start a loop's body."""
        self.loops.append(Loop(stmt))

    def close(self) -> float:
        """End the body; return the instructions before the loop."""
        return self.loops.pop().before

    def before(self, cost: float) -> None:
        """Add instructions before the innermost loop, if one is open."""
        if self.loops:
            self.loops[-1].before += cost

    def take(self, value: Any, cost: float) -> float:
        """Return the instructions of an operation, without its operands.

        If an open loop does not change the value, the instructions come once, before the outermost such loop.
        """
        if not cost or not _of_floats(value):
            return cost
        loop = next((f for f in self.loops if not self._changed(value, f)), None)
        if loop is None:
            return cost
        if (key := tvm_ffi.structural_hash(value)) not in loop.known:
            loop.known.add(key)
            loop.before += cost
        return 0.0

    def _changed(self, value: Any, loop: Loop) -> bool:
        """Test whether a loop may change data read by an expression."""
        if loop.stores_beyond(self.local) and any(
            hash(load.source) not in self.local for load in collect(value, ir.TensorLoad)
        ):
            return True
        return any(hash(v) in loop.changes for v in collect(value, tirx.Var))


def _of_floats(value: Any) -> bool:
    """Test whether an operation takes or makes a float."""
    if dtype_of(value).startswith("float"):
        return True
    name = _operand(type(value))
    return name is not None and dtype_of(getattr(value, name)).startswith("float")


@cache
def _operand(kind: type) -> str | None:
    """Return the operand field with the type that tells whether such an operation works on floats."""
    return next((name for name in ("a", "value") if hasattr(kind, name)), None)
