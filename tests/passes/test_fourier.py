"""The kernel of Fourier transforms: against numpy, and in plans that hold some frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax as _relax

from tvm_cascade.cascading import PlanOptions, plan_graph, validate
from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Window
from tvm_cascade.passes.fourier import Transform, is_fast, transformed
from tvm_cascade.pipeline import prepare
from tvm_cascade.testing.host_check import run_plan
from tvm_cascade.testing.quick_build import quick_run

relax: Any = _relax


def network(how: Transform, shape: tuple[int, ...], window: np.ndarray | None = None, power: bool = False) -> Any:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(list(shape), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y = transformed(builder, x, how, window)
            y = builder.emit(relax.op.sum(builder.emit(relax.op.multiply(y, y)), axis=-1)) if power else y
            result = builder.emit_output(y)
        builder.emit_func_output(result)
    return builder.finalize()


def numbers(array: np.ndarray) -> np.ndarray:
    return array[..., 0] + 1j * (array[..., 1] if array.shape[-1] == 2 else 0)


def spectra(how: Transform, frames: np.ndarray) -> np.ndarray:
    """Spectra of [..., samples, parts] by numpy, in double precision."""
    given = numbers(frames.astype("float64"))
    function = np.fft.rfft if how.real else np.fft.ifft if how.inverse else np.fft.fft
    return function(np.real(given) if how.real else given, how.length, axis=-1)


@pytest.mark.parametrize("length", [2, 4, 8, 32, 256])
@pytest.mark.parametrize("batch, frames, samples", [(1, 3, 0), (2, 1, 0), (2, 3, -1), (1, 2, 5)])
@pytest.mark.parametrize("form", ["real", "complex", "inverse", "of real"])
def test_spectra_are_those_of_numpy(length: int, batch: int, frames: int, samples: int, form: str) -> None:
    """Also where samples are too few, and zeros follow, or too many."""
    parts = 2 if form in ("complex", "inverse") else 1
    how = Transform(length, real=form == "real", parts=parts, inverse=form == "inverse")
    rng = np.random.default_rng(length)
    x = rng.standard_normal((batch, frames, max(length + samples, 1), parts)).astype("float32")
    (found,) = quick_run(network(how, x.shape), x)
    expected = spectra(how, x[..., :length, :])
    assert found.shape == (*expected.shape, 2)
    np.testing.assert_allclose(numbers(found), expected, atol=2e-6 * length)


@pytest.mark.parametrize("step, samples", [(1, 20), (8, 64), (16, 70), (5, 16)])
def test_frames_of_a_signal_overlap(step: int, samples: int) -> None:
    how, window = Transform(16, real=True, step=step), np.hanning(16).astype("float32")
    x = np.random.default_rng(step).standard_normal((2, samples, 1)).astype("float32")
    (found,) = quick_run(network(how, x.shape, window), x)
    first = np.arange(0, samples - 15, step)
    frames = np.stack([x[:, k : k + 16] * window[:, None] for k in first], 1)
    np.testing.assert_allclose(numbers(found), spectra(how, frames), atol=4e-5)


def test_a_plan_holds_one_frame(quick_host: None) -> None:
    """A frame is a row, whose window in the signal is as long as the transform and moves on by the step."""
    ready = prepare(network(Transform(64, real=True, step=32), (1, 512, 1), np.hanning(64), power=True), KernelTarget())
    transform = next(op for op in ready.graph.ops if op.kind == "fourier")
    assert transform.windows == (Window(extent=64, stride=32),)
    plan, whole = plan_graph(ready.graph), plan_graph(ready.graph, PlanOptions(layerwise=True))
    validate(plan)
    assert plan.peak < 0.7 * whole.peak
    x = np.random.default_rng(0).standard_normal((1, 512, 1)).astype("float32")
    frames = np.stack([x[:, k : k + 64] * np.hanning(64)[:, None] for k in range(0, 449, 32)], 1)
    expected = np.abs(spectra(Transform(64, real=True), frames)) ** 2
    for made in (plan, whole):
        np.testing.assert_allclose(run_plan(ready, made, [x]).outputs[0], expected, rtol=1e-4, atol=1e-3)


def test_lengths_that_have_the_kernel() -> None:
    assert [n for n in range(-2, 70) if is_fast(n)] == [2, 4, 8, 16, 32, 64]
