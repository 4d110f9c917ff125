"""Several networks in one image: they share an arena, and each still computes what it does alone."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.bundle import write_bundle
from tvm_cascade.emit.elf import memory_use
from tvm_cascade.emit.image import Image
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runs import emulator

pytestmark = pytest.mark.usefixtures("quick_host")

BOARD = load_board("mps2-an386")
Inputs = list[tuple[np.ndarray, np.ndarray]]


@pytest.fixture
def projects(
    tmp_path: Path, make_toy: Callable[..., EmittedNetwork], streaming_toy: EmittedNetwork, renamed: Callable
) -> list[Image]:
    """A network of 200 bytes, one of 80 that streams an input, one of 96."""
    networks = [make_toy(arena=200), renamed(streaming_toy, "rows"), renamed(make_toy(arena=96), "other")]
    target = get_core("cortex-m4")
    return [write_image(tmp_path / network.name, (network,), BuildOptions(target, BOARD)) for network in networks]


def test_networks_share_their_arena(
    tmp_path: Path, projects: list[Image], toy_inputs: Inputs, reference: Callable, emulator_tools: None
) -> None:
    bundle = write_bundle(tmp_path / "b", projects, BOARD)
    built = build_image(bundle, BOARD)
    assert (built.ram_bytes, built.arena_bytes, built.other_ram_bytes) == (200, 200, 0)
    one, two, three = toy_inputs
    inputs = [(*one, *two, *three), (*two, *three, *one)]
    result = emulator.run(built.elf, BOARD, bundle, inputs)
    for outputs, given in zip(result.outputs, inputs, strict=True):
        for k, output in enumerate(outputs):
            np.testing.assert_array_equal(output, reference(given[2 * k], given[2 * k + 1]))
    assert result.arena_high_water_bytes == 72
    assert result.instructions is not None and result.instructions > 600


def test_cmake_builds_the_bundle(
    tmp_path: Path, projects: list[Image], toy_inputs: Inputs, emulator_tools: None
) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    bundle = write_bundle(tmp_path / "b", projects, BOARD)
    built = build_image(bundle, BOARD)
    one, two, three = toy_inputs
    for measure in ("ON", "OFF"):
        output = tmp_path / f"build-{measure}"
        subprocess.run(
            ["cmake", "-S", bundle.folder, "-B", output, f"-DMEASURE={measure}"], check=True, capture_output=True
        )
        subprocess.run(["cmake", "--build", output], check=True, capture_output=True)
        assert memory_use(output / "networks.elf", BOARD)[0] == built.ram_bytes == 200
    runs = [
        emulator.run(elf, BOARD, bundle, [(*one, *two, *three)]).outputs
        for elf in (built.elf, tmp_path / "build-ON" / "networks.elf")
    ]
    np.testing.assert_array_equal(runs[0], runs[1])
    assert "| `toy.h`, `toy.c`, ... | 200 |" in (bundle.folder / "README.md").read_text()


def test_application_compiles_without_warnings(tmp_path: Path, projects: list[Image], arm_gcc: None) -> None:
    bundle = write_bundle(tmp_path / "b", projects, BOARD)
    build_image(bundle, BOARD, kind="application")
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
    flags = ("-std=c99", *warnings, "-c", "-o", "/dev/null", "-mcpu=cortex-m3", "-mthumb", "-DTVM_CASCADE_SHARED_ARENA")
    serial = ("-DTVM_CASCADE_MEASURE", "-DTVM_CASCADE_SERIAL")
    for defines, sources in (
        ((), ("main.c", "arena.c")),
        (("-DTVM_CASCADE_MEASURE", "-DTVM_CASCADE_EMULATOR"), ("main.c", "arena.c")),
        (serial, ("serial_main.c",)),
        ((*serial, "-DTVM_CASCADE_SERVE=serve", "-DTVM_CASCADE_OTHER"), ("serial_toy.c", "serial_rows.c")),
    ):
        for source in sources:
            include = f"-I{tmp_path / 'b' / 'boards' / BOARD.name}"
            command = ["arm-none-eabi-gcc", *flags, *defines, include, str(tmp_path / "b" / source)]
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr


def test_a_network_that_was_replaced_by_a_larger_one(tmp_path: Path, projects: list[Image], arm_gcc: None) -> None:
    bundle = write_bundle(tmp_path / "b", projects, BOARD)
    header = bundle.folder / "toy.h"
    header.write_text(header.read_text().replace("ARENA_SIZE 200", "ARENA_SIZE 208"))
    with pytest.raises(ToolError, match="toy was compiled again and needs another arena: bundle again"):
        build_image(bundle, BOARD)


def test_what_does_not_go_together(tmp_path: Path, projects: list[Image]) -> None:
    with pytest.raises(UsageError, match="at least two networks"):
        write_bundle(tmp_path / "b", projects[:1], BOARD)
    with pytest.raises(UsageError, match="need different names, not toy, toy"):
        write_bundle(tmp_path / "b", [projects[0], projects[0]], BOARD)
    other = replace(projects[1], target=get_core("cortex-m3"))
    with pytest.raises(UsageError, match="need one target, not cortex-m4, cortex-m3"):
        write_bundle(tmp_path / "b", [projects[0], other], BOARD)
    with pytest.raises(UsageError, match="cannot run code for cortex-m4"):
        write_bundle(tmp_path / "b", projects, load_board("microbit"))
    with pytest.raises(UsageError, match="exists and is not empty"):
        write_bundle(tmp_path / "toy", projects, BOARD)
    sources = replace(
        projects[2], networks=(replace(projects[2].networks[0], sources=projects[1].networks[0].sources),)
    )
    with pytest.raises(
        UsageError, match=r"networks rows and other both have a rows\.c: compile one with another --name"
    ):
        write_bundle(tmp_path / "b", [projects[1], sources], BOARD)
    header = projects[2].folder / "other.h"
    header.write_text(header.read_text() + "#define TOY_ARENA_ALIGN 4\n")
    with pytest.raises(UsageError, match=r"networks toy and other both have a TOY_ARENA_ALIGN"):
        write_bundle(tmp_path / "b", projects, BOARD)
    header = projects[0].folder / "toy.h"
    header.write_text(header.read_text().replace("TVM_CASCADE_SHARED_ARENA", "X"))
    with pytest.raises(UsageError, match="without a sharable arena: compile it again"):
        write_bundle(tmp_path / "b", projects, BOARD)
    assert not (tmp_path / "b").exists()


def test_a_bundle_runs_like_a_project(tmp_path: Path, emulator_tools: None) -> None:
    import tvm_cascade
    from tvm_cascade.testing.tflite import ModelWriter

    pytest.importorskip("ai_edge_litert")
    folders = []
    for name, operator in (("first", "TANH"), ("second", "LOGISTIC")):
        writer = ModelWriter()
        x = writer.activation((1, 4, 6), "int8", 0.1, 3, name="x")
        scale, zero = (1 / 128, 0) if operator == "TANH" else (1 / 256, -128)
        writer.operator(operator, [x], [writer.tensor((1, 4, 6), "int8", scale, zero, name="y")])
        (tmp_path / f"{name}.tflite").write_bytes(writer.finish())
        folders.append(tmp_path / name)
        tvm_cascade.compile(tmp_path / f"{name}.tflite", target="cortex-m4", output=folders[-1])
    tvm_cascade.bundle(folders, output=tmp_path / "b")
    values = {f"{name}/x": np.arange(-12, 12, dtype="int8").reshape(1, 4, 6) for name in ("first", "second")}
    done = tvm_cascade.run(tmp_path / "b", inputs=values, outputs=tmp_path / "o.npz")
    assert done.ok and done.board == "mps2-an386" and done.executed_macs == done.planned_macs
    alone = tvm_cascade.run(folders[1], inputs={"x": values["second/x"]}, check=tmp_path / "second.tflite")
    assert alone.match
    np.testing.assert_array_equal(done.outputs["second/y"], alone.outputs["y"])
    assert set(np.load(tmp_path / "o.npz").files) == {"first/y", "second/y"}
    with pytest.raises(UsageError, match="checked network by network"):
        tvm_cascade.run(tmp_path / "b", check=tmp_path / "second.tflite")
    with pytest.raises(UsageError, match="no input 'first/x' among second/x"):
        tvm_cascade.run(tmp_path / "b", inputs={"second/x": values["second/x"]})
    with pytest.raises(UsageError, match=r"input 'first/x' is int8\[24\], the network wants int8\[1, 4, 6\]"):
        tvm_cascade.run(tmp_path / "b", inputs={name: array.reshape(24) for name, array in values.items()})
    with pytest.raises(UsageError, match=r"input 'x' is uint8\[1, 4, 6\], the network wants int8\[1, 4, 6\]"):
        tvm_cascade.run(folders[0], inputs={"x": values["first/x"].astype("uint8")})
    with pytest.raises(UsageError, match="is a bundle already"):
        tvm_cascade.bundle([tmp_path / "b", folders[0]], output=tmp_path / "again")
