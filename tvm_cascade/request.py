"""What a user may ask, as frozen records that are checked where they are made.

The command line, `tvm_cascade.plan` and `compile`, the passes and the Relax pipeline all build these records, so that the
defaults are the same through every door. What a machine and its back end can do is asked of nobody: it follows from the
target.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tvm_cascade import checks
from tvm_cascade.checks import Check
from tvm_cascade.errors import UsageError

if TYPE_CHECKING:
    from typing_extensions import Self


def asked(default: Any, check: Check) -> Any:
    """A field of a request with its check."""
    return field(default=default, metadata={"check": check})


@dataclass(frozen=True, slots=True)
class Asked:
    """A record of options: every value is checked, and brought into its own type, when the record is made.

    Raises `UsageError` for a value that an option cannot have.
    """

    def __post_init__(self) -> None:
        for option in fields(self):
            if "check" in option.metadata:
                value = option.metadata["check"](option.name, getattr(self, option.name))
                object.__setattr__(self, option.name, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """The record of those options that are its own."""
        return cls(**{f.name: options[f.name] for f in fields(cls) if f.name in options})


@dataclass(frozen=True, slots=True)
class LoadRequest(Asked):
    """How a model file is read."""

    input_shapes: Mapping[str, tuple[int, ...]] | None = asked(None, checks.shapes)  # of inputs with symbolic sizes
    stored_io: bool = asked(False, checks.flag)  # float inputs and outputs as the integers that the network stores


@dataclass(frozen=True, slots=True)
class PlanRequest(Asked):
    """What a plan is asked for; the defaults ask for the smallest arena at no extra multiply-accumulates."""

    sram: int | str | None = asked(None, checks.cap)  # bytes of arena at most; None: as few as possible
    max_macs: float = asked(1.0, checks.factor(1.0, 1e6))  # multiply-accumulates, as a factor of the network's
    max_time: float = asked(1.2, checks.factor(1.0))  # without a cap: instructions, as a factor of steps by rows
    stream_input: bool = asked(False, checks.flag)  # inputs arrive row by row through a callback
    layerwise: bool = asked(False, checks.flag)  # the plain network, one operator after the other
    overlap: bool = asked(True, checks.flag)  # outputs may be written into the space of dying inputs
    granularity: str = asked("auto", checks.choice("row", "pixel", "auto"))  # of rolling buffers
    rewrite: bool | None = asked(None, checks.optional(checks.flag))  # None: quantized networks, bit for bit


@dataclass(frozen=True, slots=True)
class KernelRequest(Asked):
    """How the kernels of operators are chosen."""

    database: Path | None = asked(None, checks.optional(checks.path))  # counts on top of those of the package
    tune: bool = asked(False, checks.flag)  # count kernels of unknown shapes in the emulator
    metaschedule: Path | None = asked(None, checks.optional(checks.path))  # folder of records, for the host
    trials: int = asked(32, checks.whole(0))  # candidates that MetaSchedule measures for a kernel without records


@dataclass(frozen=True, slots=True)
class EmitRequest(Asked):
    """What is written for a plan."""

    board: str | None = asked(None, checks.optional(checks.text))  # by name or .json; None: the target's own
    emit: str | None = asked(None, checks.optional(checks.choice("c", "obj")))  # None: the better for the target
    optimise: str = asked("balanced", checks.choice("size", "speed", "balanced"))
    name: str | None = asked(None, checks.optional(checks.text))  # of the network; None: that of the model's file
    hook: bool = asked(False, checks.flag)  # a function of the application's is called after every step
    ram_weights: int | str = asked(0, checks.size)  # bytes of weights at most that are copied into RAM
    report: Path | None = asked(None, checks.optional(checks.path))  # an .html file or a folder


@dataclass(frozen=True, slots=True)
class Request(Asked):
    """All that may be asked of a compilation."""

    target: str = asked("cortex-m4", checks.text)
    load: LoadRequest = LoadRequest()
    plan: PlanRequest = PlanRequest()
    kernels: KernelRequest = KernelRequest()
    emit: EmitRequest = EmitRequest()


_PARTS: Mapping[str, type[Asked]] = {
    "load": LoadRequest,
    "plan": PlanRequest,
    "kernels": KernelRequest,
    "emit": EmitRequest,
}
COMPILE_OPTIONS: tuple[str, ...] = tuple(f.name for part in _PARTS.values() for f in fields(part))
PLAN_OPTIONS: tuple[str, ...] = ("database", *(f.name for part in (LoadRequest, PlanRequest) for f in fields(part)))


def request_of(target: str, options: Mapping[str, Any], known: Collection[str] = COMPILE_OPTIONS) -> Request:
    """The request of options by their names.

    Raises `UsageError` for an option that is not `known`, and for a value that an option cannot have.
    """
    refuse_unknown(options, known)
    return Request(target, *(part.of(options) for part in _PARTS.values()))


def refuse_unknown(options: Collection[str], known: Collection[str]) -> None:
    """Raises `UsageError` for an option that is not `known`."""
    for name in options:
        if name not in known:
            close = get_close_matches(name, known, 1)
            hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(known)}"
            raise UsageError(f"unknown option {name}: {hint}")
