"""States that hold the rows joined for a call: which do, what they begin with, and that every call equals the file's."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.importers.wider_states import with_wider_states
from tvm_cascade.passes.main_rewriting import shape_of
from tvm_cascade.testing.streaming import wake_word
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")
ROWS, DEPTH = 6, 8


def joined(path: Path, dtype: str, new: int = 1, last: bool = True, zero_point: int = -5) -> Path:
    """A state of rows joined with `new` ones, of which the last (or first) are kept; their mean is the output."""
    writer, numbers = ModelWriter(), (0.05, zero_point) if dtype == "int8" else ()
    x = writer.activation((1, new, 1, DEPTH), dtype, *numbers, name="x")
    state = writer.activation((1, ROWS, 1, DEPTH), dtype, *numbers, name="state")
    whole = writer.tensor((1, ROWS + new, 1, DEPTH), dtype, *numbers)
    after = writer.tensor((1, ROWS, 1, DEPTH), dtype, *numbers, name="after")
    writer.operator("CONCATENATION", [state, x], [whole], "ConcatenationOptions", inner=True, axis=1)
    begin = new if last else 0
    ends = [writer.constant(np.array(v, "int32")) for v in ([0, begin, 0, 0], [1, ROWS + begin, 1, DEPTH], [1] * 4)]
    writer.operator("STRIDED_SLICE", [whole, *ends], [after], "StridedSliceOptions")
    mean = writer.tensor((1, DEPTH), dtype, *numbers, name="mean")
    axes = writer.constant(np.array([1, 2], "int32"))
    writer.operator("MEAN", [whole, axes], [mean], "ReducerOptions", keepDims=False)
    path.write_bytes(writer.finish())
    return path


@pytest.mark.parametrize(("dtype", "new"), [("int8", 1), ("float32", 1), ("int8", 2)])
def test_a_state_holds_the_new_rows(dtype: str, new: int, tmp_path: Path) -> None:
    path = joined(tmp_path / "net.tflite", dtype, new)
    wider = with_wider_states(load(path, state={"state": "after"}))
    spec = io_spec(wider)
    assert spec.inputs[-1].shape == spec.outputs[-1].shape == (1, ROWS + new, 1, DEPTH)
    assert shape_of(wider["main"].params[-1]) == (1, ROWS + new, 1, DEPTH)
    kept = spec.states[0]
    assert kept.form == (1, ROWS, 1, DEPTH)
    assert np.frombuffer(kept.initial, "int8").tolist() == [-5] * (ROWS + new) * DEPTH * (dtype == "int8")
    item = np.dtype(dtype).itemsize
    made = tvm_cascade.compile(path, target="host", output=tmp_path / "p", state={"state": "after"})
    assert made.plan.peak < (2 * ROWS + new) * DEPTH * item  # the joined tensor and the state would be more
    rng = np.random.default_rng(0)
    data = rng.integers(-128, 128, (30, new, 1, DEPTH)).astype(dtype)
    np.savez(tmp_path / "f.npz", x=data)
    ran = tvm_cascade.run(tmp_path / "p", frames=tmp_path / "f.npz", check=path)
    assert ran.match and ran.frames == 30


def test_what_is_no_such_state_stays(tmp_path: Path) -> None:
    first_rows = load(joined(tmp_path / "first.tflite", "int8", last=False), state={"state": "after"})
    unpaired = load(joined(tmp_path / "unpaired.tflite", "int8"))
    for mod in (first_rows, unpaired):
        assert with_wider_states(mod) is mod


def test_variables_hold_the_new_rows(tmp_path: Path) -> None:
    """Each begins as the file says, with rows of the same value in front."""
    path = tmp_path / "wake.tflite"
    path.write_bytes(wake_word())
    mod = load(path)
    spec, wider = io_spec(mod), io_spec(with_wider_states(mod))
    assert [s.shape[1] for s in spec.state_specs] == [2, 4, 3]
    assert [s.shape[1] for s in wider.state_specs] == [3, 5, 4]
    assert all(set(s.initial) == {251} for s in wider.states)
    assert wider.inputs[0] == spec.inputs[0] and wider.outputs[0] == spec.outputs[0]
