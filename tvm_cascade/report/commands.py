"""The command lines for the plans of a frontier."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, replace
from math import ceil
from os import PathLike
from pathlib import Path
from typing import Any

from tvm_cascade.request import Asked, Request

_FLAGS = {"input_shapes": "--input-shape", "from_": "--from"}


def commands_of(
    model: object, request: Request, points: Sequence[tuple[int, float]], chosen: int, output: Path | None = None
) -> tuple[str, ...]:
    """List for each frontier point (peak bytes, work factor) a POSIX shell line that makes this plan.

    The point with `chosen` peak bytes keeps the request, all others are capped at their own bytes and work. If no point
    has as many, a last line gets the chosen plan.
    """
    found = []
    for peak, factor in points:
        work = max(1.0, ceil(factor * 10_000) / 10_000)
        limits = replace(request.plan, memory=(), sram=peak, max_macs=work, layerwise=False)
        found.append(command_of(model, request if peak == chosen else replace(request, plan=limits), output))
    if all(peak != chosen for peak, _ in points):
        found.append(command_of(model, request, output))
    return tuple(found)


def command_of(model: object, request: Request, output: Path | None = None) -> str:
    """Write the command line for `request`: `tvm-cascade plan`, or `compile` with an `output`; defaults are left out.

    A model without a file is called MODEL.
    """
    words = ["--target", request.target]
    for part in (request.load, request.plan, request.kernels, request.emit, request.time):
        words += _options(part)
    if output is not None:
        words += ["-o", str(output)]
    named = str(model) if isinstance(model, (str, PathLike)) else "MODEL"
    words = [*words, "--", named] if named.startswith("-") else [named, *words]
    return shlex.join(["tvm-cascade", "plan" if output is None else "compile", *words])


def _options(record: Asked) -> Iterator[str]:
    for field in fields(record):
        value = getattr(record, field.name)
        if field.name == "report" or value == field.default:
            continue
        yield from _option(_FLAGS.get(field.name, f"--{field.name.replace('_', '-')}"), value)


def _option(flag: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        yield flag if value else f"--no-{flag[2:]}"
    elif isinstance(value, Mapping):
        for name, shape in value.items():
            yield from (flag, f"{name}={','.join(map(str, shape))}")
    else:
        for one in value if isinstance(value, tuple) else (value,):
            yield from (flag, str(one))
