"""The exceptions. Every error a user can cause derives from `CascadeError`, says what to do about it and carries its data.

`exit_status` is what the command line returns: 1 infeasible or mismatch, 2 bad usage or unreadable input.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvm_cascade.messages import printable, printable_lines
from tvm_cascade.schema.refusal import Error


class CascadeError(Exception):
    """Base of all errors meant for users: one line, with the remedy in it. Unprintable characters become `?`."""

    kind = "error"
    exit_status = 2
    remedy = ""
    operators: tuple[str, ...] = ()  # that the error is about: not supported, or at the peak

    def __init__(self, message: str = "") -> None:
        super().__init__(printable(str(message)))

    def to_dict(self) -> Error:
        """What `--json` prints as `error`: the kind, the message, the remedy (empty where only the message has one) and
        the operators that it is about."""
        return {"kind": self.kind, "message": str(self), "remedy": self.remedy, "operators": list(self.operators)}


class UsageError(CascadeError):
    """An option or argument that cannot be right."""

    kind = "usage"


class LoadError(CascadeError):
    """A model file that cannot be read: missing, truncated, of another format."""

    kind = "load"

    def __init__(self, path: object, reason: str, remedy: str = "") -> None:
        super().__init__(f"{path}: {reason}" + (f": {remedy}" if remedy else ""))
        self.path = str(path)
        self.reason = reason
        self.remedy = remedy


_FEW = 40  # names that a message lists


class UnsupportedOperatorError(LoadError):
    """A model file with operators that the project cannot import or lower."""

    kind = "unsupported_operator"

    def __init__(
        self,
        path: object,
        operators: Sequence[str],
        supported: Sequence[str] = (),
        partial: object = None,
        remedy: str = "",
    ) -> None:
        """`partial`: the imported module with zeros in place of the outputs of those operators; None without one."""
        known = f"; supported: {', '.join(supported)}" if 0 < len(supported) <= _FEW else ""
        super().__init__(path, f"unsupported operator {', '.join(operators)}{known}", remedy)
        self.operators = tuple(operators)
        self.supported = tuple(supported)
        self.partial = partial


class GraphError(CascadeError):
    """A `Graph` that breaks its own rules (dangling tensor, two producers, no topological order), or an operator without
    a kernel."""

    kind = "graph"

    def __init__(self, message: str = "", remedy: str = "") -> None:
        super().__init__(message + (f": {remedy}" if remedy else ""))
        self.reason = printable(message)
        self.remedy = remedy


class MissingToolError(CascadeError):
    """A tool outside Python (cross compiler, emulator) that is not installed."""

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
    """A memory cap that no plan of the search space meets.

    Attributes
    ----------
    needed, available : int
        Bytes of the best plan found and of the cap.
    culprits : tuple of str
        Names of the operators at the peak.
    """

    kind = "infeasible"
    exit_status = 1

    def __init__(self, needed: int, available: int, culprits: Sequence[str], remedy: str) -> None:
        at_peak, missing = ", ".join(culprits), max(0, needed - available)
        super().__init__(
            f"needs {needed} bytes, {available} available, {missing} bytes missing; peak at {at_peak}; {remedy}"
        )
        self.needed = needed
        self.available = available
        self.culprits = self.operators = tuple(culprits)
        self.remedy = remedy

    def beside(self, other: int, available: int) -> InfeasibleError:
        """The same of a cap on more than the arena: `other` bytes are needed beside it, `available` are there in all."""
        told = f"{other} of them beside the arena; {self.remedy}"
        return InfeasibleError(self.needed + other, available, self.culprits, told)

    def to_dict(self) -> Error:
        return {**super().to_dict(), "needed_bytes": self.needed, "available_bytes": self.available}


class ValidationError(CascadeError):
    """A solution that its independent validator refuses: a defect of this project, never of the input."""

    kind = "validation"
    exit_status = 1
