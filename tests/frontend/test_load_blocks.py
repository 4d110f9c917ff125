"""Weights of `.tflite` with a scale for each block, or for each row of a table: read exactly, and as small in flash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import flatbuffers
import numpy as np
import pytest
from ai_edge_litert import schema_py_generated as schema

import tvm_cascade
from tvm_cascade.errors import CascadeError, LoadError
from tvm_cascade.testing.tflite import ModelWriter

ROWS, DEPTH, UNITS, SIZE = 11, 64, 32, 16
KINDS = {8: "INT8", 4: "INT4", 2: "INT2"}


def packed(values: np.ndarray, bits: int) -> np.ndarray:
    """Pack integers of some bits, the lowest first."""
    parts = values.reshape(-1, 8 // bits).astype("uint8") & np.uint8((1 << bits) - 1)
    return (parts << np.arange(0, 8, bits, dtype="uint8")).sum(axis=1).astype("uint8")


def network(path: Path, bits: int, rows: bool = False, **fields: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Write a lookup in a table and a product, both with scales for blocks; return table, weights and biases as floats.

    With `rows` the table has a scale for each row. `fields` replace those of the product's quantization.
    """
    random, writer = np.random.default_rng(bits), ModelWriter()
    low = -(1 << bits - 1)
    table, weights = (random.integers(low, -low, (n, DEPTH)).astype("int8") for n in (ROWS, UNITS))
    by_row = random.uniform(0.01, 0.05, ROWS).astype("float32")
    scales = [random.uniform(0.01, 0.05, (n, DEPTH // SIZE)).astype("float16") for n in (ROWS, UNITS)]
    bias = random.standard_normal(UNITS).astype("float32")
    i = writer.activation((3,), "int32")
    held = writer.tensor(table.shape, "int8", by_row if rows else None, data=table, name="table")
    x, y = writer.tensor((3, DEPTH), "float32"), writer.tensor((3, UNITS), "float32")
    writer.operator("EMBEDDING_LOOKUP", [i, held], [x], inner=True)
    matrix = writer.tensor(weights.shape, "int8", None, data=weights, name="weights")
    given = [x, matrix, writer.constant(bias)]
    writer.operator("FULLY_CONNECTED", given, [y], "FullyConnectedOptions", fusedActivationFunction=1)
    for array in scales:
        writer.constant(array)
    model: Any = schema.ModelT.InitFromPackedBuf(writer.finish(), 0)
    tensors = model.subgraphs[0].tensors
    of_scales = [k for k, t in enumerate(tensors) if t.type == schema.TensorType.FLOAT16]
    for tensor in tensors:
        name = tensor.name.decode()
        if name not in ("table", "weights"):
            continue
        tensor.type = getattr(schema.TensorType, KINDS[bits])
        model.buffers[tensor.buffer].data = packed(table if name == "table" else weights, bits)
        if name == "weights" or not rows:
            tensor.quantization = q = schema.QuantizationParametersT()
            q.detailsType, q.details = schema.QuantizationDetails.BlockwiseQuantization, schema.BlockwiseQuantizationT()
            wanted = {"scales": of_scales[name == "weights"], "zeroPoints": -1, "blockSize": SIZE}
            for key, value in {**wanted, **(fields if name == "weights" else {})}.items():
                setattr(q.details, key, value)
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    path.write_bytes(builder.Output())
    wide = [np.repeat(array.astype("float32"), SIZE, 1) for array in scales]
    return table * (by_row[:, None] if rows else wide[0]), weights * wide[1], bias


@pytest.mark.emulator
@pytest.mark.parametrize(("bits", "target"), [(8, "cortex-m4"), (4, "cortex-m4"), (2, "cortex-m4"), (4, "cortex-m55")])
@pytest.mark.parametrize("rows", [False, True])
def test_layers_compute_as_floats_and_stay_as_small(
    bits: int, target: str, rows: bool, emulator: None, quick_host: None, tmp_path: Path
) -> None:
    table, weights, bias = network(tmp_path / "m.tflite", bits, rows)
    made = tvm_cascade.compile(tmp_path / "m.tflite", target=target, output=tmp_path / "p")
    places = np.array([10, 0, 7], "int32")
    given: dict[str, Any] = {made.plan.graph.tensors[made.plan.graph.inputs[0]].name: places}
    run = tvm_cascade.run(tmp_path / "p", inputs=given, check=tmp_path / "m.tflite")
    assert run.to_dict()["match"] is True
    (y,) = run.outputs.values()
    np.testing.assert_allclose(y, np.maximum(table[places] @ weights.T + bias, 0), rtol=1e-5, atol=1e-5)
    assert [op.storage for op in made.plan.graph.ops if op.storage] == [f"{bits} bits"] * 2
    of_table = ROWS if rows else ROWS * DEPTH // SIZE
    most = (ROWS + UNITS) * DEPTH * bits // 8 + 4 * (of_table + UNITS * DEPTH // SIZE) + 4 * UNITS
    assert sum(op.weight_bytes for op in made.plan.graph.ops) <= most + 16


@pytest.mark.parametrize(
    ("fields", "complaint"),
    [
        ({"blockSize": 24}, "blocks of 24 weights do not divide rows of 64"),
        ({"blockSize": 0}, "blocks of 0 weights"),
        ({"blockSize": 32}, "need 64 scales"),
        ({"scales": 99}, "tensor 99 of"),
        ({"scales": 1}, "need 128 scales"),
        ({"zeroPoints": 2}, "a zero point for each block"),
    ],
)
def test_blocks_against_the_rules_are_refused(fields: dict[str, int], complaint: str, tmp_path: Path) -> None:
    network(tmp_path / "m.tflite", 4, False, **fields)
    with pytest.raises(LoadError, match=complaint):
        tvm_cascade.load(str(tmp_path / "m.tflite"))


def test_an_operator_that_does_not_read_blocks_is_refused(tmp_path: Path) -> None:
    network(tmp_path / "m.tflite", 8)
    model: Any = schema.ModelT.InitFromPackedBuf((tmp_path / "m.tflite").read_bytes(), 0)
    lookup = model.subgraphs[0].operators[0]
    code = model.operatorCodes[lookup.opcodeIndex]
    code.builtinCode = code.deprecatedBuiltinCode = schema.BuiltinOperator.GATHER
    lookup.inputs = lookup.inputs[::-1]
    lookup.builtinOptionsType, lookup.builtinOptions = schema.BuiltinOptions.GatherOptions, schema.GatherOptionsT()
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    (tmp_path / "m.tflite").write_bytes(builder.Output())
    with pytest.raises(CascadeError, match="a scale for each block"):
        tvm_cascade.load(str(tmp_path / "m.tflite"))
