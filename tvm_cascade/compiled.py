"""A network that is compiled as far as its files, and what the cache keeps of it.

A model's file that was compiled before with the same options is neither read nor planned: its plan, its emitted files and
its host program are those of then. Kept under the contents of the file and all options, but not the board, for which C is
compiled and linked again. Not kept are what is measured or tuned on the way, what a limit ended early, and models in several
files.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from pathlib import Path

from tvm.ir import IRModule

from tvm_cascade.cache import Cache, package_version
from tvm_cascade.emit.firmware import Emitted
from tvm_cascade.emit.host import HostProgram
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.errors import CascadeError
from tvm_cascade.plain_files import readable
from tvm_cascade.records import from_json, to_json
from tvm_cascade.request import Request
from tvm_cascade.results import PlanResult

_EXTERNAL = b"location"  # in an ONNX file whose weights are in other files


@dataclass(frozen=True, slots=True)
class Compiled:
    """A network compiled as far as its files."""

    told: PlanResult
    emitted: Emitted
    lines: tuple[str, ...]  # of progress, on the way here


@dataclass(frozen=True, slots=True)
class _Kept:
    told: PlanResult
    network: EmittedNetwork
    host: HostProgram
    lines: tuple[str, ...]


def key_of(model: str | Path | IRModule, request: Request, cache: Cache) -> str | None:
    """The key of a compilation in the cache; None where it is not kept."""
    kernels = request.kernels
    if cache.folder is None or isinstance(model, IRModule) or request.emit.report is not None:
        return None
    if kernels.tune or kernels.metaschedule is not None or Path(model).suffix not in (".tflite", ".onnx"):
        return None
    try:
        content = readable(model).read_bytes()
        counts = b"" if kernels.database is None else readable(kernels.database).read_bytes()
    except OSError:  # said where it is read for good
        return None
    if Path(model).suffix == ".onnx" and _EXTERNAL in content:
        return None
    plan, emit = replace(request.plan, time_limit=None), replace(request.emit, board=None)
    options = replace(request, plan=plan, time=replace(request.time, clock=None), emit=emit)
    used = [package_version(package) for package in ("onnx", "tflite", "flatbuffers", "scipy")]  # readers; small arenas
    return Cache.key("compiled", [sys.version, *used, Path(model).name, content, repr(options), counts])


def read(key: str | None, cache: Cache) -> Compiled | None:
    """What is kept under a key."""
    value = None if key is None else cache.get(key)
    if value is None:
        return None
    kept = _decoded(value)
    return Compiled(kept.told, Emitted(kept.network, lambda: kept.host), kept.lines)


def keep(key: str | None, made: Compiled, cache: Cache) -> None:
    """Keep a compilation, if it reads back as it was."""
    if key is None or made.told.limited:
        return
    kept = _Kept(replace(made.told, seconds=0.0), made.emitted.network, made.emitted.host(), made.lines)
    try:
        value = json.dumps(to_json(kept), ensure_ascii=False).encode()
        same = _decoded(value) == kept
    except (CascadeError, TypeError, ValueError):
        return
    if same:
        cache.put(key, value)


def _decoded(value: bytes) -> _Kept:
    return from_json(_Kept, json.loads(value))
