"""Compile and run a staged module in TVM's Relax virtual machine."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false, reportAttributeAccessIssue=false
from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir

from tvm_cascade.errors import UsageError
from tvm_cascade.runtime.cuda_code import CudaCode, compiled_as
from tvm_cascade.schedules import tir
from tvm_cascade.staging.kernels.processors import host_target
from tvm_cascade.staging.program.schedule_stages import stage_pipeline

_MOST_BLOCKS = 48  # of a function, to which kernels contribute up to nine
_SHARED = frozenset(  # types of elements that NumPy and TVM store alike
    f"{kind}{bits}" for kind, widths in (("int", (8, 16, 32, 64)), ("uint", (8, 16, 32, 64)), ("float", (16, 32, 64)))
    for bits in widths
) | {"bool"}  # fmt: skip


def compile_stages(mod: tvm.IRModule, target: tvm.target.Target | None = None, code: CudaCode | None = None) -> Any:
    """Compile a module to an executable for `relax.VirtualMachine`; the target defaults to this machine's CPU.

    `code`: for CUDA, the machine code to make; None: for the target's architecture, without fast arithmetic.
    """
    target = target or host_target()
    if target.kind.name != "cuda":
        with _context(mod):
            return tvm.compile(mod, target, relax_pipeline=stage_pipeline())
    with compiled_as(code or CudaCode((str(target.attrs["arch"]),))), target:
        return tvm.compile(mod, target, relax_pipeline=stage_pipeline())


def _context(mod: tvm.IRModule) -> Any:
    """Return the current context of passes, without TVM's search for common subexpressions if a function is large.

    For a stage of two whole SqueezeNets the search takes a fifth of the compilation, and more for larger ones. LLVM has its own.
    """
    held, config = tvm.transform.PassContext.current(), {}
    functions = (f for f in mod.functions.values() if isinstance(f, tvm.tirx.PrimFunc))
    if any(len(tir.collect(f, s_tir.SBlock)) > _MOST_BLOCKS for f in functions):
        config = {"tirx.disable_cse_tir": True}
    return tvm.transform.PassContext(
        opt_level=held.opt_level,
        required_pass=held.required_pass,
        disabled_pass=held.disabled_pass,
        instruments=held.instruments,
        config={**held.config, **config},
    )


class Session:
    """A compiled module on a device, to be run and timed, by a single thread at a time: runs share a single arena."""

    def __init__(self, executable: Any, device: Any = None, function: str = "main") -> None:
        self.device = device if device is not None else tvm.cpu()
        self._machine = relax.VirtualMachine(executable, self.device)
        self._function = self._machine[function]
        self._turn = threading.Lock()
        self._places: list[_Place] = []  # of the inputs of the last run

    def run(self, *inputs: np.ndarray) -> list[np.ndarray]:
        """Run the program and return outputs as arrays, in order. Raises `UsageError` while another thread runs this
        session.
        """
        with self._alone():
            result = self._function(*self._placed([np.asarray(x, order="C") for x in inputs]))
            return [_array(r) for r in result] if _is_sequence(result) else [_array(result)]

    def _placed(self, inputs: list[np.ndarray]) -> list[Any]:
        """Copy inputs to where those of the last run were, if their shapes and types are the same, else to new tensors."""
        if [(p.shape, p.dtype) for p in self._places] != [(x.shape, x.dtype) for x in inputs]:
            self._places = [_Place(x, self.device) for x in inputs]
        for place, x in zip(self._places, inputs, strict=True):
            place.copy(x)
        return [place.tensor for place in self._places]

    @contextmanager
    def _alone(self) -> Iterator[None]:
        if not self._turn.acquire(blocking=False):
            raise UsageError("two threads run one session, whose arena they would share: make one for each thread")
        try:
            yield
        finally:
            self._turn.release()

    def times_ms(self, inputs: Sequence[np.ndarray], repeats: int, warm_up: int = 3) -> list[float]:
        """Measure wall-clock milliseconds of `repeats` runs, after `warm_up` runs."""
        with self._alone():
            return self._times_ms(inputs, repeats, warm_up)

    def _times_ms(self, inputs: Sequence[np.ndarray], repeats: int, warm_up: int) -> list[float]:
        held = [tvm.runtime.tensor(np.asarray(x, order="C"), self.device) for x in inputs]
        for _ in range(warm_up):
            self._function(*held)
        self.device.sync()
        times = []
        for _ in range(repeats):
            start = perf_counter()
            self._function(*held)
            self.device.sync()
            times.append((perf_counter() - start) * 1e3)
        return times


class _Place:
    """A tensor that inputs of one shape and type are copied to: on a processor by NumPy, which takes a tenth of the time."""

    def __init__(self, array: np.ndarray, device: Any) -> None:
        self.shape, self.dtype = array.shape, array.dtype
        self.tensor = tvm.runtime.tensor(array, device)
        view = np.from_dlpack(self.tensor) if _is_shared(self.tensor) else None
        self._view = (
            view if view is not None and view.flags.writeable else None
        )  # NumPy 2.0 only reads what others hold

    def copy(self, array: np.ndarray) -> None:
        """Copy an array to the tensor."""
        if self._view is None:
            self.tensor.copyfrom(array)
        else:
            np.copyto(self._view, array)


def _array(tensor: Any) -> np.ndarray:
    """Copy a tensor to a new array."""
    return np.from_dlpack(tensor).copy() if _is_shared(tensor) else tensor.numpy()


def _is_shared(tensor: Any) -> bool:
    """Return whether NumPy can see a tensor's memory."""
    return tensor.device.dlpack_device_type() == tvm.cpu().dlpack_device_type() and str(tensor.dtype) in _SHARED


def _is_sequence(value: Any) -> bool:
    return not hasattr(value, "numpy")
