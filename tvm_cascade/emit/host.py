"""Host run: a lowered plan executed in this process, with kernels and driver compiled by LLVM and work counted.

The program is instrumented: every multiply-accumulate adds one to a counter, and canaries around the arena detect
writes outside. A compiled folder stores the program as LLVM text, so a run needs no compiler.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import tirx
from tvm.ir import Call, GlobalVar

from tvm_cascade.cache import NO_CACHE, Cache
from tvm_cascade.cascading.state_areas import areas
from tvm_cascade.emit.network import PlacedState
from tvm_cascade.emit.placement import placed_states
from tvm_cascade.errors import LoadError, UsageError, ValidationError
from tvm_cascade.plain_files import readable
from tvm_cascade.schedules.driver.lower_plan import Lowered
from tvm_cascade.schedules.tir.barrier import with_barriers
from tvm_cascade.schedules.tir.quick_build import register_pipeline
from tvm_cascade.schedules.tir.rounded_products import rounded_products
from tvm_cascade.tensor_spec import IoSpec, TensorSpec

_MOST_OPTIMISED = 200  # functions of a program that LLVM optimises
_CANARY = 64  # bytes on either side of the arena
_ENTRY, _KERNELS = "host_main", "host_kernels"
_PAINTS = (0x5A, 0x2D)  # two patterns: a byte that equals one of them by chance differs from the other


@dataclass(frozen=True)
class HostProgram:
    """A plan compiled for this machine, with kernels that count multiply-accumulates, and the interface for runs."""

    llvm: str  # LLVM text
    flash: bytes
    arena_bytes: int  # of all memories, which lie in one array at the addresses of the plan
    spare_bytes: int  # after the arena: scratch that the generic kernels need beyond that of the board's kernels
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    memories: tuple[tuple[int, int], ...] = ()  # start and bytes of each in the array; none: the arena alone
    states: tuple[PlacedState, ...] = ()  # kept from one call to the next

    def save(self, folder: Path, file: bytes | None = None) -> dict[str, object]:
        """Write the program's two files; returns the other fields as JSON-ready data for `load`.

        `file` is the flash image in a network's weights file: if it is this program's, too, it is not written again.
        """
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "program.ll").write_text(self.llvm)
        if file != self.flash:
            (folder / "flash.bin").write_bytes(self.flash)
        sides = {"inputs": [_to_dict(s) for s in self.inputs], "outputs": [_to_dict(s) for s in self.outputs]}
        placed: dict[str, object] = {"memories": self.memories} if self.memories else {}
        placed |= {"reads_weights_file": True} if file == self.flash else {}
        placed |= {"states": [state.to_dict() for state in self.states]} if self.states else {}
        return {"arena_bytes": self.arena_bytes, "spare_bytes": self.spare_bytes, **sides, **placed}

    @classmethod
    def load(cls, folder: Path, data: Mapping[str, object], file: bytes | None = None) -> HostProgram:
        """Read the files written by `save`, and take a flash image saved in a network's weights file from `file`.

        Raises `UsageError` if files are missing, and `LoadError` if `data` is damaged.
        """
        try:
            llvm = readable(folder / "program.ll").read_text()
            shared = file is not None and "reads_weights_file" in data
            flash = file if file is not None and shared else readable(folder / "flash.bin").read_bytes()
        except OSError as error:
            raise UsageError(f"{folder}: no host program here ({error.strerror}); compile again") from None
        try:
            return cls(llvm, flash, **_fields(data))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise LoadError(folder, f"does not match its metadata.json ({error}); compile again") from None


def _fields(data: Mapping[str, Any]) -> dict[str, Any]:
    """Read all fields of a `HostProgram` but its files. Raises `ValueError` if something lies outside of the arena."""
    arena, spare = int(data["arena_bytes"]), int(data["spare_bytes"])
    sides = {side: tuple(_from_dict(one) for one in data[side]) for side in ("inputs", "outputs")}
    memories = tuple((int(start), int(size)) for start, size in data.get("memories", ()))
    states = tuple(PlacedState.from_dict(one) for one in data.get("states", ()))
    placed = [spec for spec in (*sides["inputs"], *(s.spec for s in states)) if spec.offset is not None]
    spans = [(s.offset, s.bytes) for s in (*placed, *sides["outputs"])]
    if any(start is None or min(start, size) < 0 or start + size > arena for start, size in (*spans, *memories)):
        raise ValueError(f"something lies outside of its {arena} bytes")
    return {"arena_bytes": arena, "spare_bytes": spare, **sides, "memories": memories, "states": states}


_STREAMED = -1  # "offset" of a streamed input in metadata.json


def _to_dict(spec: TensorSpec) -> dict[str, object]:
    offset = _STREAMED if spec.offset is None else spec.offset
    return {"name": spec.name, "dtype": spec.dtype, "shape": spec.shape, "offset": offset}


def _from_dict(data: Mapping[str, Any]) -> TensorSpec:
    offset = int(data["offset"])
    return TensorSpec(
        name=str(data["name"]),
        shape=tuple(data["shape"]),
        dtype=str(data["dtype"]),
        offset=None if offset == _STREAMED else offset,
    )


@dataclass(frozen=True)
class HostResult:
    """Outputs of every inference by name; the last inference's multiply-accumulates; for every memory the highest
    written byte, plus one.
    """

    outputs: tuple[dict[str, np.ndarray], ...]
    executed_macs: int
    memory_high_water: tuple[int, ...]
    macs: tuple[int, ...] = ()  # multiply-accumulates of every inference

    @property
    def arena_high_water(self) -> int:
        """Return the highest written bytes, summed over all memories."""
        return sum(self.memory_high_water)


_PIPELINE = register_pipeline(
    "tvm_cascade.host", tirx.transform.FlattenBuffer(), tirx.transform.StmtSimplify(), tirx.transform.VectorizeLoop()
)


def optimised(mod: Any) -> Any:
    """Compile functions for the generic CPU of this machine's architecture (TVM target "llvm").

    Per kernel LLVM takes a twentieth of a second to optimise and twice as long to load the result; for a large network
    even many inferences do not win this back.
    """
    level = 3 if len(mod.get_global_vars()) <= _MOST_OPTIMISED else 0
    return tvm.compile(mod, target=tvm.target.Target({"kind": "llvm", "opt-level": level}), tir_pipeline=_PIPELINE)


def host_program(
    lowered: Lowered, io: IoSpec, build: Callable[[Any], Any] | None = None, cache: Cache = NO_CACHE
) -> HostProgram:
    """Compile a plan lowered with `counted=True` by `build` (default `optimised`); `io` has arena offsets."""
    assert lowered.counted
    room = lowered.plan.allocation.peak + lowered.spare_bytes
    mod = lowered.mod.clone()
    arena = tirx.decl_buffer((room + 2 * _CANARY,), "int8", "arena")
    flash = tirx.decl_buffer((max(len(lowered.flash), 8),), "int8", "flash")
    macs = tirx.decl_buffer((1,), "int64", "macs")
    streamed = sum(spec.bytes for spec in io.inputs if spec.offset is None)
    context = tirx.decl_buffer((max(streamed, 1),), "int8", "context")
    pointers = [tirx.address_of(arena[_CANARY + area.start]) for area in areas(lowered.plan)]
    pointers += [tirx.address_of(flash[0])]
    status = tirx.decl_buffer((1,), "int32", "status")
    pointers += [tirx.address_of(context[0]), tirx.address_of(status[0])] if streamed else []
    pointers += [tirx.address_of(macs[0])]
    call = Call(mod.get_global_var(lowered.invoke), pointers, ret_ty="int32")
    entry = tirx.PrimFunc([arena, flash, context, status, macs], tirx.Evaluate(call)).with_attr("global_symbol", _ENTRY)
    mod[GlobalVar(_ENTRY)] = entry
    mod[GlobalVar(_KERNELS)] = _calls_of_all(lowered)
    mod, build = rounded_products(with_barriers(mod)), build or optimised
    llvm = cache.text("host", lambda: (build.__qualname__, tvm.ir.save_json(mod)), lambda: _llvm_text(build(mod).mod))
    room = lowered.plan.allocation.peak
    placed = tuple((use.start, use.bytes) for use in lowered.plan.placed)
    sizes, states = (room, lowered.spare_bytes), placed_states(io)
    return HostProgram(llvm, lowered.flash, *sizes, io.own_inputs, io.own_outputs, placed, states)


def _calls_of_all(lowered: Lowered) -> Any:
    """Build a function, itself never called, with another call to every kernel, so LLVM does not inline all kernels.

    LLVM inlines a private function with a single call, however large; one function with all kernels of NASNetMobile (15
    MB of LLVM text) takes 6 GB and minutes to compile.
    """
    memory = tirx.decl_buffer((8,), "int8", "memory")

    def argument(param: tirx.Var) -> Any:
        dtype = str(getattr(param.ty, "dtype", ""))
        unknown = memory[0].astype("int32")  # a known argument would make the kernel look small enough to inline
        return unknown.astype(dtype) if dtype.startswith(("int", "uint")) else tirx.address_of(memory[unknown])

    calls: list[tirx.Stmt] = [
        tirx.Evaluate(Call(gv, [argument(p) for p in lowered.mod[gv].params], ret_ty="int32"))
        for gv in lowered.mod.get_global_vars()
        if gv.name_hint != lowered.invoke
    ]
    body = tirx.SeqStmt(calls) if len(calls) > 1 else calls[0] if calls else tirx.Evaluate(tirx.const(0, "int32"))
    return tirx.PrimFunc([memory], body).with_attr("global_symbol", _KERNELS)


def _llvm_text(built: Any) -> str:
    """Return the LLVM text of a compiled module, made reproducible: no buffer addresses in the names of TVM's alias
    classes.
    """
    # LLVM's own reader refuses what TVM prints: a private function with a storage class
    text = str(built.inspect_source("ll")).replace("private dllexport ", "private ")
    numbers: dict[str, int] = {}
    return re.sub(r'!"(0x[0-9a-f]+)', lambda m: f'!"buffer{numbers.setdefault(m[1], len(numbers))}', text)


def run_host(program: HostProgram, inferences: Sequence[Mapping[str, np.ndarray]]) -> HostResult:
    """Run every inference twice, over arenas painted differently; return the last run's multiply-accumulates.

    A network with states continues from the previous inference, at first from the initial values. Raises
    `ValidationError` if a canary was overwritten, that is, something wrote outside the arena.
    """
    results: list[dict[str, np.ndarray]] = []
    work: list[int] = []
    high = (0,) * max(len(program.memories), 1)
    infer = _loaded(program)
    kept = {paint: initial_states(program) for paint in _PAINTS}
    for feed in inferences:
        outputs, macs = {}, 0
        for paint in _PAINTS:
            outputs, macs, top = infer(feed, paint, kept[paint])
            high = tuple(map(max, high, top))
        results.append(outputs)
        work.append(macs)
    return HostResult(tuple(results), work[-1] if work else 0, high, tuple(work))


def host_function(program: HostProgram) -> Callable[[Mapping[str, np.ndarray]], dict[str, np.ndarray]]:
    """Return the program as a function from inputs to outputs by name, for many inferences.

    States continue from call to call. The function raises as `run_host` does.
    """
    infer, kept = _loaded(program), initial_states(program)
    return lambda feed: infer(feed, _PAINTS[0], kept)[0]


def initial_states(program: HostProgram) -> list[np.ndarray]:
    """Return the bytes of every state before the first inference."""
    return [np.frombuffer(s.initial or bytes(s.spec.bytes), np.int8).copy() for s in program.states]


def read_llvm(text: str) -> Any:
    """Load the module of an LLVM text; functions are compiled at first use."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "program.ll"
        path.write_text(text)
        return tvm.runtime.load_module(str(path))


_Inference = Callable[
    [Mapping[str, np.ndarray], int, list[np.ndarray]], tuple[dict[str, np.ndarray], int, tuple[int, ...]]
]


def _loaded(program: HostProgram) -> _Inference:
    """Return `_infer` for the program, compiled into this process by LLVM."""
    function = read_llvm(program.llvm)[_ENTRY]
    flash = np.frombuffer(program.flash + b"\0" * max(0, 8 - len(program.flash)), np.int8)

    def infer(feed: Mapping[str, np.ndarray], paint: int, kept: list[np.ndarray]) -> Any:
        arena = np.full(program.arena_bytes + program.spare_bytes + 2 * _CANARY, paint, np.int8)
        spans = [slice(s.spec.offset or 0, (s.spec.offset or 0) + s.spec.bytes) for s in program.states]
        body = arena[_CANARY : _CANARY + program.arena_bytes]
        for span, state in zip(spans, kept, strict=True):
            body[span] = state
        after, *measured = _infer(function, program, flash, feed, paint, arena)
        kept[:] = [after[span].copy() for span in spans]
        return tuple(measured)

    return infer


def _infer(function, program: HostProgram, flash: np.ndarray, feed: Mapping[str, np.ndarray], paint: int, arena):
    room = program.arena_bytes + program.spare_bytes
    body = arena[_CANARY : _CANARY + program.arena_bytes]
    rows: list[np.ndarray] = []
    for spec in program.inputs:
        value = feed.get(spec.name)
        if value is None:
            wanted = ", ".join(s.name for s in program.inputs)
            raise UsageError(f"no input '{spec.name}'; the network wants {wanted}")
        spec.check(value)
        raw = np.frombuffer(np.ascontiguousarray(value).tobytes(), np.int8)
        if spec.offset is None:
            rows.append(raw)
        else:
            body[spec.offset : spec.offset + spec.bytes] = raw
    memory, counter = tvm.runtime.tensor(arena), tvm.runtime.tensor(np.zeros(1, np.int64))
    context = np.concatenate(rows) if rows else np.zeros(1, np.int8)
    status = tvm.runtime.tensor(np.zeros(1, np.int32))
    try:
        function(memory, tvm.runtime.tensor(flash), tvm.runtime.tensor(context), status, counter)
    except ValueError:  # TVM's check of the arguments' shapes
        raise ValidationError(
            "the program for this machine has other memory than its metadata.json; compile again"
        ) from None
    after = memory.numpy()
    if (after[:_CANARY] != paint).any() or (after[_CANARY + room :] != paint).any():
        raise ValidationError("the host run wrote outside of its arena")
    body = after[_CANARY : _CANARY + program.arena_bytes]
    outputs = {spec.name: _read(body, spec) for spec in program.outputs}
    touched = tuple(_touched(body[start : start + size], paint) for start, size in _memories(program))
    between = np.ones(len(body), np.bool_)
    for start, size in _memories(program):
        between[start : start + size] = False
    if (body[between] != paint).any():
        raise ValidationError("the host run wrote between its memories")
    return body, outputs, int(counter.numpy()[0]), touched


def _memories(program: HostProgram) -> tuple[tuple[int, int], ...]:
    return program.memories or ((0, program.arena_bytes),)


def _touched(memory: np.ndarray, paint: int) -> int:
    """Return the highest byte without the paint, plus one."""
    written = np.nonzero(memory != paint)[0]
    return int(written[-1]) + 1 if len(written) else 0


def _read(arena: np.ndarray, spec: TensorSpec) -> np.ndarray:
    assert spec.offset is not None
    raw = arena[spec.offset : spec.offset + spec.bytes].tobytes()
    return np.frombuffer(raw, spec.dtype).reshape(spec.shape).copy()
