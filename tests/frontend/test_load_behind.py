"""Constants of `.tflite` that lie behind the flatbuffer, as converters write large models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("ai_edge_litert")

from tvm_cascade.checking.litert_defects import packed, repaired
from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.testing.reference import Compiled, Reference
from tvm_cascade.testing.tflite import ModelWriter

X = np.random.default_rng(0).random((2, 3)).astype("float32")


def _behind(writer: ModelWriter, beyond: int = 0) -> bytes:
    """Move the constants behind the flatbuffer; `beyond`: by how many bytes their offsets are too large."""
    from ai_edge_litert import schema_py_generated as schema

    model: Any = schema.ModelT.InitFromPackedBuf(writer.finish(), 0)
    held = {k: bytes(b.data) for k, b in enumerate(model.buffers) if b.data is not None and len(b.data)}
    for k, data in held.items():
        buffer = model.buffers[k]
        buffer.data, buffer.offset, buffer.size = None, 1, len(data)
    end = at = (len(packed(model)) + 63) // 16 * 16
    for k, data in held.items():
        model.buffers[k].offset = at + beyond
        at += (len(data) + 15) // 16 * 16
    made = packed(model)
    assert len(made) <= end
    return made.ljust(end, b"\0") + b"".join(data.ljust((len(data) + 15) // 16 * 16, b"\0") for data in held.values())


def _layers() -> ModelWriter:
    writer = ModelWriter()
    x, weights = writer.activation((2, 3), "float32"), np.arange(12, dtype="float32").reshape(4, 3)
    y = writer.tensor((2, 4), "float32")
    writer.operator("FULLY_CONNECTED", [x, writer.constant(weights), -1], [y], "FullyConnectedOptions")
    axes = writer.constant(np.array([1], "int32"))
    writer.operator("SUM", [y, axes], [writer.tensor((2,), "float32")], "ReducerOptions")
    return writer


def test_constants_behind_the_flatbuffer(tmp_path: Path) -> None:
    path = tmp_path / "m.tflite"
    path.write_bytes(_behind(_layers()))
    wanted = Reference(path.read_bytes()).run([X])
    assert wanted[0].any()
    for ours, theirs in zip(Compiled(load(path))(X), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)
    cut = load(path, until=io_spec(load(path)).outputs[0].name)
    np.testing.assert_allclose(Compiled(cut)(X)[0], wanted[0], rtol=1e-6)


def test_repaired_models_keep_constants_behind_the_flatbuffer(tmp_path: Path) -> None:
    """The reference's SUM of int8 is wrong: it computes another graph, in a file of another length."""
    writer = ModelWriter()
    x, axes = writer.activation((2, 3), "int8", 1.0), writer.constant(np.array([1], "int32"))
    writer.operator("SUM", [x, axes], [writer.tensor((2,), "int8", 1.0)], "ReducerOptions")
    path = tmp_path / "m.tflite"
    path.write_bytes(_behind(writer))
    assert repaired(path.read_bytes())[1]
    (name,) = (spec.name for spec in io_spec(load(path)).inputs)
    given = np.array([[1, 2, 3], [-1, -2, -3]], "int8")
    (made,) = reference_outputs(path, {name: given}).outputs.values()
    assert made.tolist() == [6, -6]


def test_constants_beyond_the_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(_behind(_layers(), 1 << 20))
    with pytest.raises(LoadError, match=r"a buffer of \d+ bytes at \d+ exceeds the file"):
        load(tmp_path / "m.tflite")
