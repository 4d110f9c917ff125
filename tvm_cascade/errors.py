"""The exceptions. Every error caused by a user derives from `CascadeError`, names the remedy and carries its data.

`exit_status` is the command line's: 1 infeasible or mismatch, 2 bad usage or unreadable input.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from tvm_cascade.messages import printable, printable_lines, short_name
from tvm_cascade.schema.refusal import Error


class CascadeError(Exception):
    """Base of all errors meant for users: a single line with the remedy. Unprintable characters become `?`."""

    kind = "error"
    exit_status = 2
    remedy = ""

    def __init__(self, message: str = "", operators: Sequence[str] = ()) -> None:
        super().__init__(printable(str(message)))
        self._operators = tuple(operators)

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what a pickle holds, so that errors leave worker processes as they are."""
        return _restored, (type(self), self.args, self.__dict__)

    @property
    def operators(self) -> tuple[str, ...]:
        """Return the operators concerned: named by the error itself, or by an enclosing `about`."""
        return operators_of(self)

    def to_dict(self) -> Error:
        """Return the `error` object of `--json`: kind, message, remedy ("" if only the message has one) and operators."""
        names = [printable(name) for name in self.operators]
        return {"kind": self.kind, "message": str(self), "remedy": self.remedy, "operators": names}


def _restored(kind: type[CascadeError], args: tuple[Any, ...], attributes: dict[str, Any]) -> CascadeError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(attributes)
    return error


def operators_of(error: BaseException | None) -> tuple[str, ...]:
    """Return the operators named by an error, else by the error it was raised from."""
    while error is not None:
        if names := getattr(error, "_operators", ()):
            return tuple(names)
        error = error.__cause__
    return ()


@contextmanager
def about(*operators: str) -> Iterator[None]:
    """Attach these operators to every error raised in the block, unless the error already names operators."""
    try:
        yield
    except Exception as error:
        if not operators_of(error):
            with suppress(AttributeError):  # an error of a class that takes no attributes
                error._operators = operators  # type: ignore[attr-defined]
        raise


class UsageError(CascadeError):
    """An impossible option or argument."""

    kind = "usage"


class LoadError(CascadeError):
    """An unreadable model file: missing, truncated, or in another format."""

    kind = "load"

    def __init__(self, path: object, reason: str, remedy: str = "", operators: Sequence[str] = ()) -> None:
        super().__init__(f"{path}: {reason}" + (f": {remedy}" if remedy else ""), operators)
        self.path = str(path)
        self.reason = reason
        self.remedy = remedy


class OpenSizesError(LoadError):
    """A model file with inputs of sizes that it leaves open, and nobody gave."""

    def __init__(self, path: object, reason: str, remedy: str, shapes: Mapping[str, Sequence[int | str]]) -> None:
        super().__init__(path, reason, remedy)
        self.shapes = shapes  # of these inputs, by name; a text stands for an open size


_FEW = 40  # names that a message lists


class UnsupportedOperatorError(LoadError):
    """A model file with operators the project cannot import or lower."""

    kind = "unsupported_operator"

    def __init__(
        self,
        path: object,
        operators: Sequence[str],
        supported: Sequence[str] = (),
        partial: object = None,
        remedy: str = "",
        described: Sequence[str] = (),
    ) -> None:
        """Set the unsupported `operators`.

        `partial` is the imported module with zeros in place of these operators' outputs, or None. `described` lists the
        operators with the reason for each, for the message.
        """
        known = f"; supported: {', '.join(supported)}" if 0 < len(supported) <= _FEW else ""
        super().__init__(path, f"unsupported operator {', '.join(described or operators)}{known}", remedy, operators)
        self.described = tuple(described or operators)
        self.supported = tuple(supported)
        self.partial = partial


class GraphError(CascadeError):
    """A malformed `Graph` (dangling tensor, two producers, no topological order), or an operator without a kernel."""

    kind = "graph"

    def __init__(self, message: str = "", remedy: str = "", operators: Sequence[str] = ()) -> None:
        super().__init__(message + (f": {remedy}" if remedy else ""), operators)
        self.reason = printable(message)
        self.remedy = remedy


class MissingToolError(CascadeError):
    """A missing tool outside Python (cross compiler, emulator)."""

    kind = "missing_tool"

    def __init__(self, tool: str, remedy: str) -> None:
        super().__init__(f"{tool} is not installed: {remedy}")
        self.tool = tool
        self.remedy = remedy


class ToolError(CascadeError):
    """An external tool that is installed but failed; the message may have several lines, as the tool's."""

    kind = "tool"
    exit_status = 1

    def __init__(self, message: str = "") -> None:
        Exception.__init__(self, printable_lines(str(message)))


class InfeasibleError(CascadeError):
    """A memory cap no plan in the search space meets.

    Attributes
    ----------
    needed, available : int
        Bytes: the best plan's, and the cap.
    culprits : tuple of str
        Names of the operators at the peak.
    """

    kind = "infeasible"
    exit_status = 1

    def __init__(self, needed: int, available: int, culprits: Sequence[str], remedy: str) -> None:
        at_peak, missing = ", ".join(map(short_name, culprits)), max(0, needed - available)
        super().__init__(
            f"needs {needed} bytes, {available} available, {missing} bytes missing; peak at {at_peak}; {remedy}",
            culprits,
        )
        self.needed = needed
        self.available = available
        self.culprits = tuple(culprits)
        self.remedy = remedy

    def beside(self, other: int, available: int) -> InfeasibleError:
        """Return the error for a cap on more than the arena: `other` bytes are needed beside, `available` bytes exist
        in all.
        """
        told = f"{other} of them beside the arena; {self.remedy}"
        return InfeasibleError(self.needed + other, available, self.culprits, told)

    def to_dict(self) -> Error:
        return {**super().to_dict(), "needed_bytes": self.needed, "available_bytes": self.available}


class NotOptimizedError(CascadeError):
    """Layers without a kernel made for the core, where `--require optimized` was given."""

    kind = "not_optimized"
    exit_status = 1


class AuditError(CascadeError):
    """A linked image with a heap or floats, where `--require no-heap` or `no-float` was given."""

    kind = "audit"
    exit_status = 1


class ValidationError(CascadeError):
    """A solution refused by its independent validator: a defect in this project, never in the input."""

    kind = "validation"
    exit_status = 1
