"""Constants coded by TensorFlow Lite Micro's compression: `TFLM_DECODE` and `COMPRESSION_METADATA`, decoded at the door."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

pytest.importorskip("ai_edge_litert")

import tvm_cascade
from tvm_cascade.checking.reference import LiteRtReference
from tvm_cascade.cli.group import tvm_cascade as commands
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load
from tvm_cascade.importers.tflite.coded import CodedTensor, MalformedCode, decoded
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled
from tvm_cascade.testing.tflite import ModelWriter

DEPTH, UNITS = 8, 8
# of the tests of tflite-micro: 64 letters by a Huffman code whose tables begin with eight entries
LETTERS = b"nmmacnanefdacopjomeckifookhbdbdmjjdmjgojfecpbiibmanbbjbnlgjafejp"
HUFFMAN = bytes.fromhex("F00D79FC9C1A6E4C32AF29B35DF6360250158CA795DB29683FBAB7EDB119E2E0")
TABLES = (
    *(0x986D, 0x9861, 0x986A, 0x0005, 0x0806, 0x0809, 0x000E, 0x000F, 0x886F, 0x8868, 0x8864, 0x8864, 0x9069, 0x9066),
    *(0x8863, 0x8863, 0x0002, 0x906B, 0x8867, 0x886C, 0x8865, 0x8862, 0x8870, 0x886E),
)


def header(kind: int, parameter: int = 0, stride: int = 0) -> bytes:
    return bytes((kind, 1, 0, 0, 1, parameter, stride)) + bytes(9)


def packed(values: np.ndarray, bits: int) -> bytes:
    """Pack indices, high bits first."""
    return np.packbits((values.reshape(-1, 1) >> np.arange(bits)[::-1] & 1).astype("uint8")).tobytes()


def coded(kind: str, rng: np.random.Generator) -> tuple[np.ndarray, bytes, bytes]:
    """Draw weights [UNITS, DEPTH] and code them: data, coded bytes and ancillary bytes."""
    if kind == "map":
        data = np.where(rng.random((UNITS, DEPTH)) < 0.3, rng.integers(1, 128, (UNITS, DEPTH)), 0).astype("int8")
        return data, packed((data != 0).astype(int), 1), header(2) + data[data != 0].tobytes()
    if kind == "huffman":
        data = np.frombuffer(LETTERS, "int8").reshape(UNITS, DEPTH)
        return data, HUFFMAN, header(1, 2 << 4) + struct.pack(f"<{len(TABLES)}H", *TABLES)
    bits, tables = int(kind[5]), UNITS if kind.endswith("each") else 1
    values = rng.integers(-127, 128, (tables, 1 << bits)).astype("int8")
    indices = rng.integers(0, 1 << bits, (UNITS, DEPTH))
    data = np.take_along_axis(np.broadcast_to(values, (UNITS, 1 << bits)), indices, 1)
    return data, packed(indices, bits), header(0, bits, 1 << bits) + values.tobytes()


def network(kind: str, change: bytes | None = None) -> tuple[bytes, bytes]:
    """Write a fully connected layer with coded weights, and with the same weights in plain; `change` replaces the code."""
    files = []
    for is_coded in (True, False):
        rng, writer = np.random.default_rng(0), ModelWriter()
        data, code, ancillary = coded(kind, rng)
        x = writer.activation((1, DEPTH), "int8", 0.1, 5, "x")
        scales = np.linspace(0.01, 0.02, UNITS) if kind.endswith("each") else 0.02
        weights = writer.tensor(data.shape, "int8", scales, data=None if is_coded else data)
        if is_coded:
            parts = [writer.constant(np.frombuffer(b, "uint8")) for b in (change or code, ancillary)]
            writer.operator("CUSTOM", parts, [weights], custom="TFLM_DECODE", inner=True)
        bias = writer.constant(rng.integers(-900, 900, UNITS).astype("int32"), 0.002)
        y = writer.tensor((1, UNITS), "int8", 0.5, -3)
        writer.operator("FULLY_CONNECTED", [x, weights, bias], [y], "FullyConnectedOptions", version=4)
        files.append(writer.finish())
    return files[0], files[1]


@pytest.mark.parametrize("kind", [*(f"table{bits}" for bits in range(1, 8)), "table4each", "map", "huffman"])
def test_coded_weights_are_the_plain_ones(tmp_path: Path, kind: str) -> None:
    data = tmp_path / "coded.tflite", tmp_path / "plain.tflite"
    for path, file in zip(data, network(kind), strict=True):
        path.write_bytes(file)
    x = np.random.default_rng(1).integers(-128, 128, (1, DEPTH)).astype("int8")
    results = [Compiled(LowerQuantized()(load(path)))(x)[0] for path in data]
    np.testing.assert_array_equal(*results)
    assert len(np.unique(results[0])) > 2
    for path in data:  # and the reference of `run --check` reads both
        np.testing.assert_array_equal(*LiteRtReference(path, {}, {}).run({"x": x}).values(), results[0])


def test_codes_of_other_types_and_axes() -> None:
    wide = struct.pack("<8I", *(0x98000000 | ord(c) for c in "abcdefgh"))
    of = CodedTensor((3,), "int16")
    assert decoded(packed(np.array([1, 0, 7]), 3), header(1, 2 << 4 | 1) + wide, of) == b"b\0a\0h\0"
    last = CodedTensor((2, 3), "int8", (5, 6, 7), 1)
    assert decoded(bytes([0b01000100]), header(2) + bytes([9, 10]), last) == bytes([5, 9, 7, 5, 6, 10])
    table = header(0, 1, 2) + bytes([1, 2, 3, 4, 5, 6])
    assert decoded(bytes([0b01001100]), table, last) == bytes([1, 4, 5, 1, 4, 5][:1]) + bytes([4, 5, 1, 4, 6])
    floats = np.array([1.5, -2.0], "<f4").tobytes()
    made = decoded(bytes([0b10000000]), header(0, 1) + floats, CodedTensor((2,), "float32"))
    assert made == np.array([-2.0, 1.5], "<f4").tobytes()


@pytest.mark.parametrize(
    ("code", "ancillary", "complaint"),
    [
        (b"", header(0, 4, 16) + bytes(16), "0 bytes for 4 indices"),
        (b"\xff\xff", header(0, 4, 16) + bytes(8), "the index 15 into a table of 8 values"),
        (b"\xff\xff", header(0, 0, 16) + bytes(8), "indices of 0 bits"),
        (b"\xff", header(2) + bytes(3), "4 set bits, and 3 values"),
        (b"\0\0", header(1, 0) + struct.pack("<2H", 0, 0), "2 bytes of Huffman code for 4 elements"),
        (b"\0\0", header(1, 0) + struct.pack("<2H", 0x8000, 0x8000), "2 bytes of Huffman code for 4 elements"),
        (b"\xff\xff", header(1, 0) + struct.pack("<2H", 0x8801, 0x0700), "entry 1794 of Huffman tables with 2"),
        (b"\0", header(7), "the unknown coding 7"),
        (b"\0", bytes((0, 2, 0, 0, 1)) + bytes(11), "version 2.1"),
        (b"\0", bytes(8), "8 bytes of ancillary data"),
    ],
)
def test_bad_codes_are_refused(code: bytes, ancillary: bytes, complaint: str) -> None:
    with pytest.raises(MalformedCode, match=complaint):
        decoded(code, ancillary, CodedTensor((4,), "int8"))


def test_a_bad_file_is_refused_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "m.tflite").write_bytes(network("table4", bytes(5))[0])
    with pytest.raises(LoadError, match="coded tensor t1: 5 bytes for 64 indices of 4 bits"):
        load(tmp_path / "m.tflite")
    done = CliRunner().invoke(commands, ["plan", str(tmp_path / "m.tflite")])
    assert done.exit_code == 2 and "5 bytes for 64 indices" in done.output


def with_metadata(file: bytes, tensor: int, values: np.ndarray, bits: int) -> bytes:
    """Add metadata which say that a tensor's data are indices into a table, as tflite-micro's first compression wrote them."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema

    from tvm_cascade.checking.litert_defects import object_tree
    from tvm_cascade.checking.litert_defects import packed as written

    model = object_tree(file)
    builder = flatbuffers.Builder(0)
    builder.StartObject(3)
    for slot, (prepend, value) in enumerate(
        (
            (builder.PrependInt32Slot, tensor),
            (builder.PrependUint32Slot, len(model.buffers)),
            (builder.PrependUint8Slot, bits),
        )
    ):
        prepend(slot, value, 0)
    table = builder.EndObject()
    for slot, size in ((0, 1), (1, 2)):  # of a subgraph, then of the root, whose version is the default
        builder.StartVector(4, 1, 4)
        builder.PrependUOffsetTRelative(table)
        vector = builder.EndVector()
        builder.StartObject(size)
        builder.PrependUOffsetTRelativeSlot(slot, vector, 0)
        table = builder.EndObject()
    builder.FinishSizePrefixed(table)
    for data in (values.tobytes(), bytes(builder.Output())):
        buffer = schema.BufferT()
        buffer.data = np.frombuffer(data, "uint8")
        model.buffers.append(buffer)
    entry = schema.MetadataT()
    entry.name, entry.buffer = "COMPRESSION_METADATA", len(model.buffers) - 1
    model.metadata = [*(model.metadata or ()), entry]
    return written(model)


@pytest.mark.parametrize("tables", [1, UNITS])
def test_tables_of_the_metadata(tmp_path: Path, tables: int) -> None:
    rng, files = np.random.default_rng(2), []
    values, indices = rng.integers(-127, 128, (tables, 8)).astype("int8"), rng.integers(0, 8, (UNITS, DEPTH))
    data = np.take_along_axis(np.broadcast_to(values, (UNITS, 8)), indices, 1)
    for stored in (np.frombuffer(packed(indices, 3), "int8"), data):
        writer = ModelWriter()
        x = writer.activation((1, DEPTH), "int8", 0.1, 5, "x")
        weights = writer.tensor(data.shape, "int8", np.full(tables, 0.02) if tables > 1 else 0.02, data=stored)
        y = writer.tensor((1, UNITS), "int8", 0.5, -3)
        writer.operator("FULLY_CONNECTED", [x, weights, -1], [y], "FullyConnectedOptions", version=4)
        files.append(writer.finish())
    (tmp_path / "plain.tflite").write_bytes(files[1])
    (tmp_path / "coded.tflite").write_bytes(with_metadata(files[0], 1, values, 3))
    xs = rng.integers(-128, 128, (1, DEPTH)).astype("int8")
    made, plain = (Compiled(LowerQuantized()(load(tmp_path / f"{n}.tflite")))(xs)[0] for n in ("coded", "plain"))
    np.testing.assert_array_equal(made, plain)
    np.testing.assert_array_equal(*LiteRtReference(tmp_path / "coded.tflite", {}, {}).run({"x": xs}).values(), plain)
    for tensor, table, bits, complaint in (
        (9, values, 3, "names tensor 9"),
        (1, values[:, :4], 3, "into a table of 4"),
    ):
        (tmp_path / "bad.tflite").write_bytes(with_metadata(files[0], tensor, table, bits))
        with pytest.raises(LoadError, match=complaint):
            load(tmp_path / "bad.tflite")


def layers(path: Path, form: str, is_coded: bool) -> int:
    """Write a layer whose weights have 16 values, coded or not; return how many weights it has."""
    rng, writer = np.random.default_rng(3), ModelWriter()
    values = rng.choice(np.arange(-127, 128), 16, replace=False).astype("int8")
    values = np.arange(-8, 8, dtype="int8") if form == "four bits" else values
    depth, dilation = 16 if form == "groups" else 32, 2 if form == "dilated" else 1
    shape = (40, 256) if form == "rows" else (33, 3, 3, depth) if form == "odd" else (32, 3, 3, depth)
    indices = rng.integers(0, 16, shape)
    x = writer.activation((3, 256) if form == "rows" else (1, 9, 7, 32), "int8", 0.1, 5)
    weights = writer.tensor(shape, "int8", 0.02, data=None if is_coded else values[indices])
    if is_coded:
        code = packed(indices, 4), header(0, 4, 16) + values.tobytes()
        parts = [writer.constant(np.frombuffer(part, "uint8")) for part in code]
        writer.operator("CUSTOM", parts, [weights], custom="TFLM_DECODE", inner=True)
    bias = writer.constant(rng.integers(-900, 900, shape[0]).astype("int32"), 0.002)
    if form == "rows":
        y = writer.tensor((3, 40), "int8", 9.0, -3)
        writer.operator("FULLY_CONNECTED", [x, weights, bias], [y], "FullyConnectedOptions", version=4)
    else:
        stride = {"strideH": 3 - dilation, "strideW": 3 - dilation}
        y = writer.tensor((1, 9, 7, 32) if form == "dilated" else (1, 5, 4, shape[0]), "int8", 9.0, -3)
        how = {"dilationHFactor": dilation, "dilationWFactor": dilation}
        writer.operator("CONV_2D", [x, weights, bias], [y], "Conv2DOptions", **stride, **how)
    path.write_bytes(writer.finish())
    return int(indices.size)


@pytest.mark.emulator
@pytest.mark.parametrize(
    ("form", "target"),
    [
        *((form, "cortex-m4") for form in ("plain", "groups", "dilated", "odd", "rows")),
        *(("plain", target) for target in ("cortex-m0plus", "cortex-m55", "riscv32")),
    ],
)
def test_few_values_stay_indices_in_flash(
    form: str, target: str, emulator: None, quick_host: None, tmp_path: Path
) -> None:
    """Weights of 16 values take four bits and a table of 1,024 bytes on cores with the DSP extension."""
    plan, count = {}, 0
    for name in ("coded", "plain"):
        count = layers(tmp_path / f"{name}.tflite", form, name == "coded")
        plan[name] = tvm_cascade.compile(tmp_path / f"{name}.tflite", target=target, output=tmp_path / name).plan
    assert tvm_cascade.run(tmp_path / "coded", check=tmp_path / "plain.tflite").to_dict()["match"] is True
    coded, plain = (sum(op.weight_bytes for op in plan[name].graph.ops) for name in ("coded", "plain"))
    assert plain - coded == (count // 2 - 1024 if target == "cortex-m4" else 0)


@pytest.mark.emulator
@pytest.mark.parametrize(("form", "table"), [("plain", 1024), ("four bits", 0)])
def test_few_values_of_any_network_take_four_bits_for_size(
    form: str, table: int, emulator: None, quick_host: None, tmp_path: Path
) -> None:
    count = layers(tmp_path / "m.tflite", form, False)
    made = [
        tvm_cascade.compile(tmp_path / "m.tflite", target="cortex-m4", output=tmp_path / how, optimise=how)
        for how in ("balanced", "size")
    ]
    balanced, size = (sum(op.weight_bytes for op in one.plan.graph.ops) for one in made)
    assert balanced - size == count // 2 - table + 32 * (9 * 4 - 3)  # and one bias of three bytes in place of nine
    assert tvm_cascade.run(tmp_path / "size", check=tmp_path / "m.tflite").to_dict()["match"] is True
