"""A real compiled network through everything around it: sanitizers on the host, several boards."""

from __future__ import annotations

import shutil
import struct
import subprocess
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx.helper import make_graph, make_model, make_node, make_opsetid, make_tensor_value_info

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.emit import toolchain
from tvm_cascade.emit.image import Image, read_image, read_network
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runs import emulator
from tvm_cascade.testing.builds import build_host

pytestmark = pytest.mark.usefixtures("quick_host")

BOARD = load_board("mps2-an385")


@pytest.fixture(scope="module")
def compiled(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Image:
    if shutil.which("arm-none-eabi-gcc") is None:
        pytest.skip("arm-none-eabi-gcc is not installed")
    folder = tmp_path_factory.mktemp("kws") / "p"
    model = models / "kws_dscnn_int8.tflite"
    tvm_cascade.compile(model, target="cortex-m3", output=folder, board=BOARD.name, emit="c")
    return read_image(folder)


@pytest.fixture(scope="module")
def inputs(compiled: Image) -> list[np.ndarray]:
    rng = np.random.default_rng(5)
    return [rng.integers(-128, 128, spec.shape, dtype=np.int8) for spec in compiled.networks[0].inputs]


def test_clean_under_sanitizers_and_equal_to_the_board(
    compiled: Image, inputs: list[np.ndarray], tmp_path: Path, emulator_tools: None
) -> None:
    try:
        program = build_host(tmp_path, read_network(compiled, compiled.networks[0]), sanitize=True)
    except ToolError as error:
        pytest.skip(f"the compiler's sanitizers are not installed: {error}")
    data = compiled.pack_inputs(inputs)
    (tmp_path / "inputs.bin").write_bytes(struct.pack("<II", 0xA5, 1) + data)
    done = subprocess.run((str(program),), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    host = compiled.unpack_outputs((tmp_path / "results.bin").read_bytes()[8:])
    elf = toolchain.build_image(compiled, BOARD).elf
    result = emulator.run(elf, BOARD, compiled, [inputs])
    for here, there in zip(host, result.outputs[0], strict=True):
        np.testing.assert_array_equal(here, there)
    assert result.arena_high_water_bytes == compiled.arena_bytes


@pytest.mark.parametrize("board", ["mps2-an386", "mps2-an500", "mps2-an505", "lm3s6965evb"])
def test_one_folder_serves_other_boards(
    board: str, compiled: Image, inputs: list[np.ndarray], emulator_tools: None
) -> None:
    other = load_board(board)
    first = emulator.run(toolchain.build_image(compiled, BOARD).elf, BOARD, compiled, [inputs])
    there = emulator.run(toolchain.build_image(compiled, other).elf, other, compiled, [inputs])
    np.testing.assert_array_equal(first.outputs[0][0], there.outputs[0][0])
    assert there.instructions == pytest.approx(first.instructions, rel=0.001)


def test_objects_are_not_built_for_this_machine(compiled: Image, tmp_path: Path) -> None:
    network = read_network(compiled, compiled.networks[0])
    as_object = replace(network, files={**network.files, "k.o": b""}, objects=("k.o",))
    with pytest.raises(UsageError, match="use --emit c to build it here"):
        build_host(tmp_path, as_object)


def test_cores_that_would_compute_something_else_are_refused(compiled: Image, tmp_path: Path) -> None:
    """Of 16-bit int, as AVR has it, and of the other byte order."""
    (tmp_path / "limits.h").write_text("#define INT_MAX 32767\n")
    for option, taken in ((f"-I{compiled.folder}", True), (f"-I{tmp_path}", False), ("-mbig-endian", False)):
        command = ["arm-none-eabi-gcc", option, "-fsyntax-only", f"{compiled.folder}/{compiled.name}.h"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode == 0) == taken
        assert taken or "is for cores with int of 32 bits and the least significant byte first" in done.stderr


def test_small_code_of_thumb_1_keeps_its_callers_registers(emulator_tools: None, tmp_path: Path) -> None:
    """GCC 12 counts on registers that a kernel pops behind the variables in their places, once a pragma names an option."""
    kind, index = onnx.TensorProto.FLOAT, [onnx.numpy_helper.from_array(np.array(k), f"i{k}") for k in range(2)]
    nodes = [make_node("Gather", [f"x{k // 2}", f"i{k % 2}"], [f"y{k}"], axis=0) for k in range(4)]
    given = [make_tensor_value_info(f"x{k}", kind, [2, 4, 2, 4]) for k in range(2)]
    taken = [make_tensor_value_info(f"y{k}", kind, [4, 2, 4]) for k in range(4)]
    made = make_model(
        make_graph(nodes, "halves", given, taken, index), opset_imports=[make_opsetid("", 13)], ir_version=8
    )
    onnx.save(made, tmp_path / "halves.onnx")
    tvm_cascade.compile(
        tmp_path / "halves.onnx", target="cortex-m0plus", output=tmp_path / "p", optimise="size", emit="c"
    )
    xs = [np.random.default_rng(k).standard_normal((2, 4, 2, 4)).astype("float32") for k in range(2)]
    report = tvm_cascade.run(tmp_path / "p", inputs={"x0": xs[0], "x1": xs[1]})
    for k in range(4):
        np.testing.assert_array_equal(report.outputs[f"y{k}"], xs[k // 2][k % 2])
