"""Comparison of `.tflite` files with LiteRT's reference kernels, bit for bit where they hold integers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import tvm_cascade
from tvm_cascade.cascading import plan_graph
from tvm_cascade.checking.litert_defects import repaired
from tvm_cascade.cores import KernelTarget
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.pipeline import prepare
from tvm_cascade.testing.host_check import run_calls
from tvm_cascade.testing.reference import Compiled, Reference, random_inputs
from tvm_cascade.testing.tflite import ModelWriter


def equal_outputs(folder: Path, writer: ModelWriter, *given: list[np.ndarray], exact: bool = False) -> list[np.ndarray]:
    """Assert that the virtual machine's outputs equal the reference's, for `given` inputs or some random ones; returns the
    last. Floats are equal within 1e-5 of the largest, or bit for bit (`exact`). The file is `m.tflite` in `folder`."""
    path = folder / "m.tflite"
    path.write_bytes(writer.finish())
    lower: Any = LowerQuantized()  # a class that TVM's decorator makes a pass
    run, reference = Compiled(lower(load(path, stateless=True))), Reference(path.read_bytes())
    made = []
    for arrays in given or [random_inputs(reference.inputs, k) for k in range(4)]:
        made = run(*arrays)
        _compare(made, reference.run(arrays), exact)
    return made


def equal_planned(folder: Path, writer: ModelWriter, *given: list[np.ndarray], exact: bool = False) -> list[np.ndarray]:
    """Assert that a plan, run on this machine, gives the reference's outputs as `equal_outputs` does; returns the last."""
    path = folder / "m.tflite"
    path.write_bytes(writer.finish())
    ready, reference = prepare(load(path, stateless=True), KernelTarget()), Reference(path.read_bytes())
    plan, made = plan_graph(ready.graph), ()
    for arrays in given or [random_inputs(reference.inputs, k) for k in range(4)]:
        (made,) = run_calls(ready, plan, ready.io, [arrays])
        _compare(list(made), reference.run(arrays), exact)
    return list(made)


def equal_sequence(folder: Path, writer: ModelWriter, calls: int = 20) -> tuple[str, ...]:
    """Compare a sequence of calls with random inputs, in which network and reference keep their states; returns their names."""
    path = folder / "m.tflite"
    path.write_bytes(writer.finish())
    lower: Any = LowerQuantized()
    loaded = load(path)
    interface = io_spec(loaded)
    run, reference = Compiled(lower(loaded)), Reference(repaired(path.read_bytes())[0])
    kept = [
        np.frombuffer(state.initial or bytes(spec.bytes), spec.dtype).reshape(spec.shape)
        for state, spec in zip(interface.states, interface.state_specs, strict=True)
    ]
    assert kept
    for k in range(calls):
        arrays = random_inputs(reference.inputs, k)
        made = run(*arrays, *kept)
        _compare(made[: -len(kept)], reference.run(arrays, again=k > 0))
        kept = made[-len(kept) :]
    return tuple(state.name for state in interface.states)


def _compare(made: list[np.ndarray], expected: list[np.ndarray], exact: bool = False) -> None:
    for ours, theirs in zip(made, expected, strict=True):
        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
        if theirs.dtype.kind == "f" and not exact:
            reach = 1e-5 * float(np.abs(theirs).max(initial=1e-3))
            np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=reach)
        else:
            np.testing.assert_array_equal(ours, theirs)


def host_equals(folder: Path) -> None:
    """Assert that the program for the host, of the file that `equal_outputs` wrote, gives the reference's outputs."""
    tvm_cascade.compile(folder / "m.tflite", target="host", output=folder / "p")
    assert tvm_cascade.run(folder / "p", board="host", check=folder / "m.tflite").match
