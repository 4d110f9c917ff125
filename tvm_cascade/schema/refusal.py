"""The output of every command under `--json` when the command refuses."""

from __future__ import annotations

from typing import Annotated, TypedDict

from tvm_cascade.schema.units import Bytes, Ratio, Unit


class FlashRemedy(TypedDict):
    """An option that reduces an image's flash."""

    option: Annotated[str, "With its value, such as '--weights file'"]
    saved_bytes: Annotated[Bytes, "Of flash, estimated where they are code"]
    ram_bytes: Annotated[int, Unit("bytes"), "More RAM that it takes; negative for less"]
    instructions_factor: Annotated[Ratio, "Of the estimated instructions of an inference"]


class _Shortage(TypedDict, total=False):
    needed_bytes: Annotated[Bytes, "Of kind 'infeasible': arena of the best plan known"]
    available_bytes: Annotated[Bytes, "Of kind 'infeasible': the cap"]
    remedies: Annotated[list[FlashRemedy], "Of an image that exceeds its flash: what saves bytes, and what that costs"]


class Error(_Shortage):
    """Why a command did nothing, or stopped."""

    kind: Annotated[
        str, "Class of the error, such as 'usage', 'load', 'unsupported_operator', 'infeasible', 'missing_tool'"
    ]
    message: Annotated[str, "One sentence, as on standard error"]
    remedy: Annotated[str, "What to do about it; empty where only the message says"]
    operators: Annotated[list[str], "Operators that it is about: not supported, or at the peak"]


class _Ended(TypedDict, total=False):
    limited: Annotated[bool, "Whether a limit ended a search"]


class Refusal(_Ended):
    """Printed in place of the command's own object on refusal; the exit status is 1, 2, 130 or 143."""

    error: Annotated[Error, "What was wrong"]
