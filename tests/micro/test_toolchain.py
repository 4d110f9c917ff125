"""Building: sizes read from the image, overflow as a figure, the same image through CMake."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade import api
from tvm_cascade.boards.board import available_ram, load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit import toolchain
from tvm_cascade.emit.elf import memory_use, read_sections
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import LoadError, MissingToolError, ToolError
from tvm_cascade.runs import emulator
from tvm_cascade.search_monitor import Progress, SearchMonitor
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.builds import build

M3 = get_core("cortex-m3")


def test_sizes_equal_those_of_binutils(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> None:
    result = build(tmp_path, toy, M3, load_board("mps2-an385"))
    listing = subprocess.run(
        ("arm-none-eabi-size", "-A", result.elf), capture_output=True, text=True, check=True
    ).stdout
    sizes = {
        words[0]: int(words[1]) for words in map(str.split, listing.splitlines()) if words[:1] and words[0][0] == "."
    }
    assert result.ram_bytes == sizes.get(".data", 0) + sizes[".bss"] == 80
    assert result.flash_bytes == sizes[".vectors"] + sizes[".text"] + sizes.get(".data", 0)
    assert (result.arena_bytes, result.other_ram_bytes) == (80, 0)


def test_initialised_data_takes_ram_and_flash(
    tmp_path: Path, make_toy: Callable[..., EmittedNetwork], arm_gcc: None
) -> None:
    board = load_board("mps2-an385")
    plain = build(tmp_path / "plain", make_toy(), M3, board)
    table = "volatile int table[5] = {1, 2, 3, 4, 5};\n"
    with_data = build(tmp_path / "data", make_toy(prologue=table, extra="table[0]++;"), M3, board)
    assert with_data.ram_bytes == plain.ram_bytes + 20
    assert with_data.flash_bytes >= plain.flash_bytes + 20


def test_arena_that_fills_the_board_links_and_one_byte_more_does_not(
    tmp_path: Path, make_toy: Callable[..., EmittedNetwork], arm_gcc: None
) -> None:
    board, target = load_board("microbit"), get_core("cortex-m0plus")
    most = available_ram(board)
    result = build(tmp_path / "fits", make_toy(arena=most), target, board)
    assert result.ram_bytes == most
    with pytest.raises(toolchain.MemoryOverflowError, match=r"needs 16392 bytes of ram .* 16384 available") as caught:
        build(tmp_path / "over", make_toy(arena=most + 8), target, board)
    assert (caught.value.region, caught.value.needed, caught.value.available) == ("ram", 16392, 16384)


def test_a_linker_script_that_the_user_has_changed_stays(
    tmp_path: Path, make_toy: Callable[..., EmittedNetwork], arm_gcc: None
) -> None:
    """An arena in a section of its own, placed where the user says; a script that nobody changed follows its board."""
    board = load_board("mps2-an386")
    project = write_image(tmp_path, (make_toy(),), BuildOptions(get_core("cortex-m4"), board))
    script = tmp_path / "boards" / board.name / "link.ld"
    made = script.read_text()
    other = tmp_path / "other.json"
    other.write_text(json.dumps(json.loads(board.source) | {"stack_reserve": 2048}))
    smaller = load_board(other)
    assert smaller.name == board.name
    toolchain.build_image(project, smaller)
    assert script.read_text() != made
    toolchain.build_image(project, board)
    assert script.read_text() == made
    script.write_text(made.replace("__bss_start = .;", "__bss_start = .; . += 64;"))
    built = toolchain.build_image(project, board)
    assert "+= 64" in script.read_text() and built.ram_bytes == built.arena_bytes + 64


def test_flash_overflow(tmp_path: Path, make_toy: Callable[..., EmittedNetwork], arm_gcc: None) -> None:
    with pytest.raises(toolchain.MemoryOverflowError, match=r"bytes of flash .* 131072 available"):
        build(
            tmp_path,
            make_toy(weight_bytes=140000, extra="y[0] = (int8_t)toy_padding[a[0] & 1];"),
            M3,
            load_board("stm32vldiscovery"),
        )


def test_what_exceeds_both_memories_says_so(
    tmp_path: Path, make_toy: Callable[..., EmittedNetwork], arm_gcc: None
) -> None:
    network = make_toy(arena=9000, weight_bytes=140000, extra="y[0] = (int8_t)toy_padding[a[0] & 1];")
    with pytest.raises(toolchain.MemoryOverflowError, match="bytes of ram") as caught:
        build(tmp_path, network, M3, load_board("stm32vldiscovery"))
    assert caught.value.needed > 9000 and 140000 < caught.value.flash_needed < 144000


def test_compiler_errors_are_passed_on(tmp_path: Path, make_toy: Callable[..., EmittedNetwork], arm_gcc: None) -> None:
    with pytest.raises(ToolError, match=r"(?s)failed:\n.*not_declared"):
        build(tmp_path, make_toy(extra="not_declared = 1;"), M3, load_board("mps2-an385"))


@pytest.mark.parametrize("kind", ["toy", "streaming_toy"])
def test_sources_are_clean_under_strict_warnings(
    kind: str, tmp_path: Path, arm_gcc: None, request: pytest.FixtureRequest
) -> None:
    write_image(tmp_path, (request.getfixturevalue(kind),), BuildOptions(M3, load_board("mps2-an386")))
    warnings = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")
    flags = ("-std=c99", *warnings, "-O2", "-c", "-o", "/dev/null", "-mcpu=cortex-m3", "-mthumb")
    for kind_of_program, (sources, defines, _) in toolchain.PROGRAMS.items():
        for source in sources:
            command = ["arm-none-eabi-gcc", *flags, *defines, f"-I{tmp_path / 'boards/mps2-an386'}"]
            done = subprocess.run([*command, str(tmp_path / source)], capture_output=True, text=True, check=False)
            assert done.returncode == 0, f"{kind_of_program}: {done.stderr}"


def test_interrupts_of_the_device_follow_those_of_the_core(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> None:
    board = load_board("stm32vldiscovery")
    project = write_image(tmp_path, (toy,), BuildOptions(M3, board))
    own = """
static void tick(void) {}
__attribute__((section(".vectors.device"), used)) static void (*const device_vectors[])(void) = {tick, tick};
"""
    main = tmp_path / "main.c"
    main.write_text(main.read_text() + own)
    elf = toolchain.build_image(project, board, kind="application").elf
    listed = subprocess.run(["arm-none-eabi-nm", str(elf)], check=True, capture_output=True, text=True).stdout
    places = {line.split()[2]: int(line.split()[0], 16) for line in listed.splitlines()}
    assert places["vector_table"] == board.flash.origin
    assert places["device_vectors"] == board.flash.origin + 16 * 4


def test_missing_compiler_names_the_remedy(
    tmp_path: Path, toy: EmittedNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(
        MissingToolError, match=r"arm-none-eabi-gcc is not installed: apt-get install gcc-arm-none-eabi"
    ):
        build(tmp_path / "p", toy, M3, load_board("mps2-an385"))
    assert not (tmp_path / "p").exists()


def test_same_input_same_image(tmp_path: Path, toy: EmittedNetwork, arm_gcc: None) -> None:
    board = load_board("mps2-an385")
    first = build(tmp_path / "p", toy, M3, board).elf.read_bytes()
    assert build(tmp_path / "p", toy, M3, board).elf.read_bytes() == first


def test_elf_reader_refuses_other_files(tmp_path: Path) -> None:
    for content in (b"", b"\x7fELF\x02\x01" + bytes(60), b"\x7fELF\x01\x01" + b"\xff" * 60):
        path = tmp_path / "x"
        path.write_bytes(content)
        with pytest.raises(LoadError, match="ELF"):
            read_sections(path)
    with pytest.raises(LoadError, match="No such file"):
        read_sections(tmp_path / "none")


@pytest.mark.parametrize("measure", [False, True])
def test_cmake_builds_the_folder(
    tmp_path: Path,
    toy: EmittedNetwork,
    toy_inputs: list[tuple[np.ndarray, np.ndarray]],
    emulator_tools: None,
    measure: bool,
) -> None:
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    board = load_board("mps2-an386")
    built = build(tmp_path, toy, get_core("cortex-m4"), board)
    output = tmp_path / "build" / "cmake"
    configure = ["cmake", "-S", tmp_path, "-B", output]
    refused = subprocess.run([*configure, "-DBOARD=nucleo"], check=False, capture_output=True, text=True)
    assert "no boards/nucleo; there are: mps2-an386" in refused.stderr
    configure += ["-DBOARD=mps2-an386"]
    subprocess.run([*configure, f"-DMEASURE={'ON' if measure else 'OFF'}"], check=True, capture_output=True)
    subprocess.run(["cmake", "--build", output], check=True, capture_output=True)
    elf = output / "toy.elf"
    ram_bytes, flash_bytes = memory_use(elf, board)
    assert ram_bytes == built.ram_bytes
    if measure:
        assert flash_bytes == built.flash_bytes
        runs = [emulator.run(image, board, toy.interface, toy_inputs) for image in (elf, built.elf)]
        np.testing.assert_array_equal(runs[0].outputs, runs[1].outputs)
    else:
        assert flash_bytes < built.flash_bytes


def test_cmake_links_the_functions_of_floats(tmp_path: Path, emulator_tools: None) -> None:
    """A float softmax calls `expf`."""
    if shutil.which("cmake") is None:
        pytest.skip("cmake is not installed")
    net = Net("float32", seed=1)
    mod = net.finish(net.softmax(net.dense(net.flatten(net.input((1, 3, 3, 4))), 5)))
    folder = tmp_path / "p"
    api.compile(mod, target="cortex-m4", output=folder)
    configure = ["cmake", "-S", folder, "-B", folder / "build", f"-DCMAKE_TOOLCHAIN_FILE={folder / 'toolchain.cmake'}"]
    subprocess.run(configure, check=True, capture_output=True)
    subprocess.run(["cmake", "--build", folder / "build"], check=True, capture_output=True)
    assert list((folder / "build").glob("*.elf"))


def test_a_compilation_counts_its_kernels_segments_and_c_files(tmp_path: Path, arm_gcc: None) -> None:
    net = Net("int8", seed=1)
    x = net.conv(net.conv(net.input((1, 8, 8, 4)), 4, 3), 4, 1)
    shown: list[Progress] = []
    with SearchMonitor(show=shown.append):
        api.compile(net.finish(x), target="cortex-m4", output=tmp_path / "out", cache=False)
    sources = list((tmp_path / "out").rglob("*.c"))
    for phase in ("segments replayed", "kernels", "C files"):
        counts = [p.done for p in shown if p.phase == phase]
        assert {p.total for p in shown if p.phase == phase} == {max(counts)}, "of so many, all of which are done"
        assert sorted(counts) == list(range(0 if phase != "C files" else 1, 1 + max(counts)))
        assert phase != "C files" or 1 < max(counts) <= len(sources)
