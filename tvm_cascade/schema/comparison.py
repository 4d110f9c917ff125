"""The output of `compare` under `--json`."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from tvm_cascade.schema.units import Bytes, Count


class Side(TypedDict):
    """A plan, a project or a run; null for missing values."""

    path: Annotated[str, "The file or folder"]
    kind: Annotated[Literal["plan", "project", "run"], "What it is"]
    peak_bytes: Annotated[Bytes | None, "The arena"]
    bound_bytes: Annotated[Bytes | None, "Lower bound of the arena"]
    macs: Annotated[Count | None, "Multiply-accumulates"]
    weight_bytes: Annotated[Bytes | None, "Weights and tables in flash"]
    instructions: Annotated[Count | None, "Instructions of one inference: of a run counted, of a plan estimated"]
    stack_bytes: Annotated[Bytes | None, "Deepest stack"]
    ram_bytes: Annotated[Bytes | None, "Arena, data and bss of the image"]
    flash_bytes: Annotated[Bytes | None, "Code, weights and tables of the image"]
    options: Annotated[dict[str, str], "Target, board and options of planning, where they are known"]


class Comparison(TypedDict):
    """Two plans, projects or runs."""

    a: Annotated[Side, "The first"]
    b: Annotated[Side, "The second"]
