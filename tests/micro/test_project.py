"""The project folder: complete, readable again, free of the model's own text."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_cascade.boards.board import list_boards, load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.board_files import add_board, board_header, find_board, linker_script
from tvm_cascade.emit.image import read_image, read_network, write_metadata
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.emit.write_image import BuildOptions, write_image
from tvm_cascade.errors import LoadError, UsageError

M3 = get_core("cortex-m3")


def test_folder_is_complete_and_reads_back(tmp_path: Path, toy: EmittedNetwork) -> None:
    board = load_board("mps2-an385")
    project = write_image(tmp_path / "p", (toy,), BuildOptions(M3, board, "size"))
    names = {str(path.relative_to(tmp_path / "p")) for path in (tmp_path / "p").rglob("*") if path.is_file()}
    assert names == {
        "toy.h", "toy.c", "toy_weights.c", "main.c", "startup.c", "port.h", "port_semihosting.c", "measure.h",
        "CMakeLists.txt", "toolchain.cmake", "README.md", "metadata.json", "serial_main.c", "uart.h",
        "boards/mps2-an385/link.ld", "boards/mps2-an385/board.h", "boards/mps2-an385/board.cmake",
        "boards/mps2-an385/board.json",
    }  # fmt: skip
    assert read_image(tmp_path / "p") == project
    assert read_network(project, project.networks[0]) == toy
    assert (project.board, project.optimise, project.networks[0].interface) == ("mps2-an385", "size", toy.interface)
    write_metadata(project, {"plan": {"peak": 80}})
    assert json.loads((tmp_path / "p" / "metadata.json").read_text())["plan"] == {"peak": 80}
    assert read_image(tmp_path / "p") == project


def test_no_template_mark_and_no_model_text_is_left(tmp_path: Path, toy: EmittedNetwork) -> None:
    write_image(tmp_path, (toy,), BuildOptions(M3, load_board("mps2-an385")))
    for path in tmp_path.rglob("*"):
        if path.is_file() and path.name != "metadata.json":
            text = path.read_text()
            assert "@toy" not in text and "@name@" not in text and "@board@" not in text, path
            assert "#error" not in text and "serving" not in text, path
    readme = (tmp_path / "README.md").read_text()
    assert "- inputs.a: int8[1, 24], 24 bytes, real = 0.5 * (q - 3)" in readme


def test_same_input_same_bytes(tmp_path: Path, toy: EmittedNetwork) -> None:
    for folder in ("one", "two"):
        write_image(tmp_path / folder, (toy,), BuildOptions(M3, load_board("mps2-an385")))
    for path in (tmp_path / "one").rglob("*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "two" / path.relative_to(tmp_path / "one")).read_bytes()


def test_second_board_in_one_folder(tmp_path: Path, toy: EmittedNetwork) -> None:
    write_image(tmp_path, (toy,), BuildOptions(M3, load_board("mps2-an385")))
    add_board(tmp_path, load_board("stm32vldiscovery"))
    assert "LENGTH = 8192" in (tmp_path / "boards/stm32vldiscovery/link.ld").read_text()


def test_a_folder_remembers_the_boards_of_its_user(tmp_path: Path, toy: EmittedNetwork) -> None:
    """Named by file once, by name from then on, also where the file is gone or the package has a board of that name."""
    own = json.loads(load_board("mps2-an385").source) | {
        "name": "mps2-an386",
        "core": "cortex-m3",
        "stack_reserve": 256,
    }
    (tmp_path / "own.json").write_text(json.dumps(own))
    board = load_board(tmp_path / "own.json")
    project = write_image(tmp_path / "p", (toy,), BuildOptions(M3, board))
    (tmp_path / "own.json").unlink()
    assert find_board(project.folder, project.board) == board != load_board("mps2-an386")
    assert find_board(project.folder, "mps2-an385") == load_board("mps2-an385")
    with pytest.raises(UsageError, match="unknown board 'doorbell'"):
        find_board(project.folder, "doorbell")


def test_files_of_a_board_follow_its_own_until_the_user_edits_them(tmp_path: Path) -> None:
    place = add_board(tmp_path, load_board("mps2-an386"))
    files = {name: place / name for name in ("board.json", "link.ld")}

    def set_ram(size: int) -> None:
        board = json.loads(files["board.json"].read_text())
        board["memory"]["ram"]["bytes"] = size
        files["board.json"].write_text(json.dumps(board))
        add_board(tmp_path, find_board(tmp_path, "mps2-an386"))

    set_ram(65536)
    assert "LENGTH = 65536" in files["link.ld"].read_text()
    edited = files["link.ld"].read_text().replace("__bss_start = .;", "__bss_start = .; . += 64;")
    files["link.ld"].write_text(edited)
    set_ram(131072)
    assert files["link.ld"].read_text() == edited
    files["link.ld"].unlink()
    set_ram(131072)
    assert "LENGTH = 131072" in files["link.ld"].read_text()
    assert '"bytes": 131072' in files["board.json"].read_text()


@pytest.mark.parametrize("name", list_boards())
def test_linker_script_holds_the_board_memories(name: str) -> None:
    board = load_board(name)
    script = linker_script(board)
    assert f"FLASH (rx) : ORIGIN = 0x{board.flash.origin:08X}, LENGTH = {board.flash.bytes}" in script
    assert f"STACK_RESERVE = {board.stack_reserve};" in script
    assert ("VECTORS (rx)" in script) == (board.vectors is not None)


def test_board_header_without_counter() -> None:
    text = board_header(load_board("stm32vldiscovery"))
    assert text.count("return 0;") == 2 and "nothing to set up" in text


@pytest.mark.parametrize(
    ("make_dir", "message"), [(False, "is .* a folder made by"), (True, "is not the metadata of a compiled network")]
)
def test_other_folders_are_refused(tmp_path: Path, make_dir: bool, message: str) -> None:
    if make_dir:
        (tmp_path / "metadata.json").write_text('{"project": {}}')
    with pytest.raises(LoadError, match=message):
        read_image(tmp_path)


def test_unknown_optimisation_and_wrong_board(tmp_path: Path, make_toy: Callable[..., EmittedNetwork]) -> None:
    with pytest.raises(UsageError, match="unknown optimisation 'fast'; known: size, balanced, speed"):
        write_image(tmp_path / "p", (make_toy(),), BuildOptions(M3, load_board("mps2-an385"), "fast"))
    with pytest.raises(UsageError, match="cannot run code for cortex-m3"):
        write_image(tmp_path / "p", (make_toy(),), BuildOptions(M3, load_board("microbit")))
    assert not (tmp_path / "p").exists()
