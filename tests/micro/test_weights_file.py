"""Weights outside of the image: in a section, in a file bound by pointer, or read from that file layer by layer."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.emit.image import read_image
from tvm_cascade.emit.packages import KINDS
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import InfeasibleError, LoadError, UsageError
from tvm_cascade.results import CompileResult
from tvm_cascade.runs import emulator as emulation
from tvm_cascade.runs.emulator import FirmwareError
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host")

pytest.importorskip("ai_edge_litert")

STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror", "-std=c99")
HEADER = 64


def _network(path: Path, seed: int, channels: int = 24) -> Path:
    """Four convolutions; the weights alone depend on the seed."""
    rng, w = np.random.default_rng(seed), ModelWriter()
    x = w.activation((1, 8, 8, 2), "int8", 0.1, 3, name="x")
    for depth, size, stride in ((4, 3, 1), (channels, 3, 2), (16, 1, 1), (6, 1, 1)):
        x = w.convolution(x, depth, size, stride, rng)
    w.outputs = [x]
    path.write_bytes(w.finish())
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _network(tmp_path_factory.mktemp("model") / "m.tflite", 0)


@pytest.fixture(scope="module")
def linked(model: Path, tmp_path_factory: pytest.TempPathFactory) -> CompileResult:
    """The project with linked weights."""
    folder = tmp_path_factory.mktemp("linked") / "fw"
    return tvm_cascade.compile(model, target="cortex-m4", output=folder, name="net")


def _emulate(folder: Path, weights: bytes, tmp_path: Path) -> None:
    """Run the project's image on a file of weights that nobody has checked before."""
    image = read_image(folder)
    board = find_board(folder, image.board)
    file = tmp_path / "given.bin"
    file.write_bytes(weights)
    inputs = [np.zeros(spec.shape, spec.dtype) for spec in image.networks[0].inputs]
    emulation.run(build_image(image, board, unless_current=lambda _: None).elf, board, image, [inputs], weights=file)


@pytest.mark.parametrize("storage", ["file", "stream"])
@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m55", "riscv32"])
def test_a_file_takes_the_weights_out_of_the_image(
    target: str, storage: str, model: Path, tmp_path: Path, emulator: None
) -> None:
    made = tvm_cascade.compile(model, target=target, output=tmp_path / "fw", name="net", weights=storage)
    data = (tmp_path / "fw/weights.bin").read_bytes()
    told = json.loads((tmp_path / "fw/metadata.json").read_text())["weights"]
    digest = hashlib.sha256(data).hexdigest()
    assert told == {"storage": storage, "file": "weights.bin", "bytes": len(data), "sha256": digest}
    assert made.to_dict()["weights"] == told and made.flash is not None
    assert len(data) >= HEADER + made.flash[0]
    done = tvm_cascade.run(tmp_path / "fw", check=model)
    assert done.ok and done.match and done.equals_host
    assert tvm_cascade.run(tmp_path / "fw", check=model, board="host").match


def test_the_image_is_smaller_by_the_weights(
    model: Path, linked: CompileResult, tmp_path: Path, emulator: None
) -> None:
    made = tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "fw", name="net", weights="file")
    assert linked.flash is not None and made.flash_bytes is not None and linked.flash_bytes is not None
    assert made.flash_bytes < linked.flash_bytes - linked.flash[0] + 600  # what checks the file
    cap = made.flash_bytes
    assert cap < linked.flash_bytes
    again = tvm_cascade.compile(
        model, target="cortex-m4", output=tmp_path / "capped", name="net", weights="file", flash=cap
    )
    assert again.flash_bytes is not None and again.flash_bytes <= cap
    with pytest.raises(InfeasibleError, match="bytes of flash"):
        tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "no", flash=linked.flash[0])


@pytest.mark.parametrize("storage", ["file", "stream"])
def test_weights_of_the_network_trained_again_need_no_new_image(
    storage: str, model: Path, tmp_path: Path, emulator: None
) -> None:
    other = _network(tmp_path / "m.tflite", 1)
    for file, folder in ((model, "old"), (other, "new")):
        tvm_cascade.compile(file, target="cortex-m4", output=tmp_path / folder, name="net", weights=storage)
    image = (tmp_path / "old/build/mps2-an386/net.elf").read_bytes()
    shutil.copy(tmp_path / "new/weights.bin", tmp_path / "old/weights.bin")
    done = tvm_cascade.run(tmp_path / "old", check=other)
    assert done.ok and done.match and done.equals_host is None and "not compared" in done.to_text()
    assert not tvm_cascade.run(tmp_path / "old", check=model).match
    assert (tmp_path / "old/build/mps2-an386/net.elf").read_bytes() == image
    with pytest.raises(UsageError, match=r"weights\.bin was exchanged"):
        tvm_cascade.run(tmp_path / "old", board="host")


def test_the_program_of_this_machine_reads_the_file(model: Path, tmp_path: Path) -> None:
    other = _network(tmp_path / "m.tflite", 1)
    for file, folder in ((model, "old"), (other, "new")):
        tvm_cascade.compile(file, target="host", output=tmp_path / folder, name="net", weights="file")
    assert not (tmp_path / "old/host/flash.bin").exists()
    shutil.copy(tmp_path / "new/weights.bin", tmp_path / "old/weights.bin")
    assert tvm_cascade.run(tmp_path / "old", check=other).match


@pytest.mark.parametrize("storage", ["file", "stream"])
def test_what_does_not_belong_is_refused_by_name(storage: str, model: Path, tmp_path: Path, emulator: None) -> None:
    folder = tmp_path / "fw"
    tvm_cascade.compile(model, target="cortex-m4", output=folder, name="net", weights=storage)
    other = _network(tmp_path / "m.tflite", 0, channels=28)
    tvm_cascade.compile(other, target="cortex-m4", output=tmp_path / "other", name="net", weights=storage)
    own = (folder / "weights.bin").read_bytes()
    _emulate(folder, own, tmp_path)
    short = "TRUNCATED"
    wrong = {
        "NOT_WEIGHTS": (b"\0" + own[1:], "is no file of weights"),
        "VERSION": (own[:4] + b"\2" + own[5:], "of version 2"),
        "FOREIGN": ((tmp_path / "other/weights.bin").read_bytes(), "another network"),
        "DAMAGED": (own[:-1] + bytes([own[-1] ^ 1]), "is damaged"),
        short: (own[:-1], "ends too early"),
    }
    for name, (data, sentence) in wrong.items():
        with pytest.raises(FirmwareError, match=name):
            _emulate(folder, data, tmp_path)
        (folder / "weights.bin").write_bytes(data)
        for board in (None, "host"):
            with pytest.raises(LoadError, match=sentence):
                tvm_cascade.run(folder, board=board)
    with pytest.raises(FirmwareError, match="UNREAD" if storage == "stream" else short):
        _emulate(folder, own[:10], tmp_path)
    (folder / "weights.bin").write_bytes(own[:10])
    with pytest.raises(LoadError, match="ends within its header"):
        tvm_cascade.run(folder)


def test_buffers_of_a_stream_are_counted(model: Path, linked: CompileResult, tmp_path: Path, emulator: None) -> None:
    planned = tvm_cascade.plan(model, target="cortex-m4", weights="stream")
    made = tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "fw", name="net", weights="stream")
    assert 0 < made.ram_weight_bytes == planned.ram_weight_bytes == planned.to_dict()["ram_weight_bytes"]
    assert planned.need is not None and planned.need.ram == planned.peak_bytes + planned.ram_weight_bytes
    assert planned.need.constants == 0 and "into " in planned.to_text()
    assert made.ram_bytes is not None and linked.ram_bytes is not None
    assert made.ram_bytes >= made.peak_bytes + made.ram_weight_bytes
    assert made.ram_weight_bytes < len((tmp_path / "fw/weights.bin").read_bytes()) - HEADER
    text = (tmp_path / "fw/net.c").read_text()
    assert "port_read_weights(net_copies[k].from" in text and "flash)[" not in text.split("net_invoke", 2)[-1]


@pytest.mark.parametrize("storage", ["linked", "section", "file", "stream"])
@pytest.mark.parametrize("more", [{}, {"hook": True}, {"ram_weights": 400}])
def test_sources_are_free_of_warnings(storage: str, more: dict, model: Path, tmp_path: Path, emulator: None) -> None:
    if storage == "stream" and "ram_weights" in more:
        with pytest.raises(UsageError, match="leave --ram-weights out"):
            tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "fw", weights=storage, **more)
        return
    folder = tmp_path / "fw"
    tvm_cascade.compile(model, target="cortex-m4", output=folder, name="net", weights=storage, link=False, **more)
    for source in ("net.c", "net_weights.c", "main.c", "serial_main.c"):
        if (folder / source).is_file():
            flags = STRICT if source.startswith("net") else ("-Wall", "-Wextra", "-Werror", "-std=c99")
            board = f"-I{folder / 'boards/mps2-an386'}"
            command = ["arm-none-eabi-gcc", *flags, board, "-c", "-o", str(tmp_path / "o"), str(folder / source)]
            built = subprocess.run(command, capture_output=True, text=True, check=False)
            assert built.returncode == 0, built.stderr
    assert ("net_bind_weights(" in (folder / "net.h").read_text()) == (storage in ("file", "stream"))
    assert "#define NET_INTERFACE_VERSION 1" in (folder / "net.h").read_text()


def test_a_section_lies_where_the_linker_script_says(model: Path, tmp_path: Path, emulator: None) -> None:
    folder = tmp_path / "fw"
    made = tvm_cascade.compile(model, target="cortex-m4", output=folder, name="net", weights="section")
    assert made.flash is not None
    script = folder / "boards/mps2-an386/link.ld"
    text = script.read_text()
    text = text.replace("MEMORY\n{\n", "MEMORY\n{\n    OTHER (rw) : ORIGIN = 0x21000000, LENGTH = 1M\n")
    script.write_text(
        text.replace("*(.tvm_weights .tvm_weights.*) } > FLASH", "*(.tvm_weights .tvm_weights.*) } > OTHER")
    )
    done = tvm_cascade.run(folder, check=model)
    assert done.ok and done.match
    sections = {s.name: s for s in read_sections(folder / str(made.elf))}
    assert sections[".tvm_weights"].address == 0x21000000 and sections[".tvm_weights"].bytes >= made.flash[0]


@pytest.mark.parametrize("kind", KINDS)
def test_packages_carry_the_file(kind: str, model: Path, tmp_path: Path) -> None:
    for storage in ("section", "file", "stream"):
        folder, out = tmp_path / storage, tmp_path / f"net_{storage}"
        tvm_cascade.compile(model, target="cortex-m4", output=folder, name="net", weights=storage, link=False)
        if kind == "rust" and storage != "section":
            with pytest.raises(UsageError, match=r"no way to bind weights\.bin"):
                tvm_cascade.export(folder, kind=kind, output=out)
            continue
        files = tvm_cascade.export(folder, kind=kind, output=out)
        assert ("weights.bin" in files) == (storage != "section")
        texts = [p.read_text() for p in out.rglob("*") if p.suffix in (".md", ".c", ".cpp", ".ino", ".h")]
        if storage == "section":
            assert any('#define NET_FLASH_SECTION ".rodata.tvm_weights"' in text for text in texts)
        else:
            called = "net_bind_weights(weights, bytes)" if storage == "file" else "= net_bind_weights()"
            assert any(called in text for text in texts)
        assert any("`net`" in text and "weights" in text for text in texts)


def test_a_bundle_is_one_image(model: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / name, name=name, weights="file", link=False)
    with pytest.raises(UsageError, match="a bundle is one image"):
        tvm_cascade.bundle([tmp_path / "a", tmp_path / "b"], output=tmp_path / "both")


def test_bundled_sections_stay_apart(model: Path, tmp_path: Path, emulator: None) -> None:
    for name in ("a", "b"):
        tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / name, name=name, weights="section", link=False)
    made = tvm_cascade.bundle([tmp_path / "a", tmp_path / "b"], output=tmp_path / "both")
    assert made.shared_weight_bytes == 0 and tvm_cascade.run(tmp_path / "both").ok


def test_copies_that_contradict_are_refused(model: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--prefetch copies linked weights"):
        tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "fw", weights="file", prefetch=512)
    with pytest.raises(UsageError, match="weights"):
        tvm_cascade.plan(model, target="cortex-m4", weights="elsewhere")


def test_hashes_of_model_and_files_are_recorded(model: Path, linked: CompileResult) -> None:
    data = json.loads((linked.folder / "metadata.json").read_text())
    assert data["interface_version"] == 1
    assert data["model"] == {"file": model.name, "sha256": hashlib.sha256(model.read_bytes()).hexdigest()}
    assert data["weights"]["storage"] == "linked" and len(data["weights"]["sha256"]) == 64
    own = hashlib.sha256((linked.folder / "net.c").read_bytes()).hexdigest()
    assert data["written"]["net.c"] == own


def test_a_network_without_weights(tmp_path: Path, emulator: None) -> None:
    """Its file is a header alone, and there is nothing to stream."""
    w = ModelWriter()
    x, y = w.activation((1, 8, 8, 2), "int8", 0.1, 3, name="x"), w.tensor((1, 4, 4, 2), "int8", 0.1, 3)
    window = {"strideW": 2, "strideH": 2, "filterWidth": 2, "filterHeight": 2, "padding": 1}
    w.operator("MAX_POOL_2D", [x], [y], "Pool2DOptions", **window)
    model = tmp_path / "m.tflite"
    model.write_bytes(w.finish())
    tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "fw", weights="file")
    assert tvm_cascade.run(tmp_path / "fw", check=model).match
    assert (tmp_path / "fw/weights.bin").stat().st_size == HEADER
    with pytest.raises(UsageError, match="no weights that could be read"):
        tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "none", weights="stream")
