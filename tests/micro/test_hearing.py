"""Packages with an audio front end: their examples go from a microphone's samples to outputs, here on the emulator."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.errors import UsageError
from tvm_cascade.micro.board import load_board
from tvm_cascade.micro.emulator import emulator_command
from tvm_cascade.micro.front_end import write_front_end
from tvm_cascade.micro.image import read_image
from tvm_cascade.micro.packages import KINDS
from tvm_cascade.micro.toolchain import build_image
from tvm_cascade.request import FrontEndRequest
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.front_end import FrontEndOracle

pytestmark = pytest.mark.usefixtures("quick_host", "emulator")
BOARD, ROWS, FEATURES = load_board("mps2-an386"), 8, 40

# What Zephyr provides to the sample, and a main that lets it hear what the desk has
STANDINS = {
    "zephyr/kernel.h": "#include <stdint.h>\n#define k_msleep(time) ((void)(time))\n",
    "zephyr/sys/printk.h": "#define printk(...) ((void)0)\n",
}
ARDUINO = """
#include <stdint.h>
struct serial {
    void begin(long rate);
    void println(const char *text);
};
extern struct serial Serial;
"""
MAIN = """
#include "port.h"
#include "audio.c"
#define main sample
{sample}
#undef main
int main(void)
{{
    port_open();
    (void)sample();
    port_exit(0);
    return 0;
}}
"""


@pytest.fixture
def front_end(tmp_path: Path) -> Path:
    write_front_end(FrontEndRequest(), tmp_path / "audio")
    return tmp_path / "audio"


def compiled(folder: Path, features: int = FEATURES, hop: int | None = 2) -> Path:
    """A network over a window of rows that takes `hop` new ones."""
    net = Net("int8")
    x = net.conv(net.input((1, ROWS, 1, features)), 8, (3, 1), padding="valid", activation="relu")
    mod = net.finish(net.dense(net.flatten(net.global_pool(net.conv(x, 8, 1))), 3))
    tvm_cascade.compile(mod, target="cortex-m4", output=folder, hop=hop, name="slide")
    return folder


@pytest.mark.parametrize("hop", [2, None])
def test_the_sample_for_zephyr_hears(hop: int | None, tmp_path: Path, front_end: Path) -> None:
    """Every output from PCM on: features by the oracle, outputs by the network in this process."""
    project = compiled(tmp_path / "p", hop=hop)
    files = tvm_cascade.export(project, kind="zephyr", output=tmp_path / "z", front_end=front_end)
    assert {"src/audio.c", "include/audio.h"} < set(files)
    sample = (tmp_path / "z/samples/slide/src/main.c").read_text()
    silent = "    (void)samples;\n    return 0;\n"
    assert sample.count(silent) == 1 and sample.count("/* USER CODE: read the outputs.") == 1
    heard = "    if (port_read(samples, AUDIO_STEP * 2u) != AUDIO_STEP * 2u) port_exit(0);\n    return 1;\n"
    (output,) = re.findall(r"^ +\* outputs\.(\w+):", sample, re.M)
    told = f"port_write(outputs.{output}, SLIDE_{output.upper()}_SIZE); /* "
    sample = sample.replace(silent, heard).replace("/* USER CODE: read the outputs.", told)
    (project / "main.c").write_text(MAIN.format(sample=sample))
    for place, text in {**STANDINS, "audio.c": "", "audio.h": ""}.items():
        (project / place).parent.mkdir(parents=True, exist_ok=True)
        (project / place).write_text(text or (front_end / place).read_text())
    rng = np.random.default_rng(3)
    wave = (rng.normal(0, 900, 16000) * (1 + 9 * np.sin(np.arange(16000) / 900) ** 2)).clip(-32768, 32767)
    (tmp_path / "inputs.bin").write_bytes(wave.astype("<i2").tobytes())
    elf = build_image(read_image(project), BOARD).elf
    subprocess.run(emulator_command(BOARD, elf), cwd=tmp_path, stdin=subprocess.DEVNULL, timeout=300, check=True)
    made = np.frombuffer((tmp_path / "results.bin").read_bytes(), "int8").reshape(-1, 3)
    rows = np.array(list(FrontEndOracle().rows(wave.astype("int16"))))
    rows = np.minimum((rows * 256 + 333) // 666 - 128, 127).astype("int8")
    if hop is None:
        before = np.concatenate([np.zeros((ROWS - 1, FEATURES), "int8"), rows])
        calls = np.lib.stride_tricks.sliding_window_view(before, ROWS, axis=0).transpose(0, 2, 1)
    else:
        calls = rows[: len(rows) // hop * hop].reshape(-1, hop, FEATURES)
    np.savez(tmp_path / "f.npz", calls[:, :, None])
    told = tvm_cascade.run(project, frames=tmp_path / "f.npz", outputs=tmp_path / "o.npz", board="host")
    wanted = next(iter(np.load(tmp_path / "o.npz").values())).reshape(-1, 3)
    assert told.frames == len(made) and len(np.unique(wanted, axis=0)) > len(wanted) // 4
    np.testing.assert_array_equal(made, wanted)


def test_every_kind_with_examples_in_c_has_the_front_end(tmp_path: Path, front_end: Path) -> None:
    project = compiled(tmp_path / "p")
    for kind in KINDS:
        if kind == "rust":
            with pytest.raises(UsageError, match="a crate's is Rust"):
                tvm_cascade.export(project, kind=kind, output=tmp_path / kind, front_end=front_end)
            continue
        files = tvm_cascade.export(project, kind=kind, output=tmp_path / kind, front_end=front_end)
        assert {"audio.c", "audio.h"} <= {Path(f).name for f in files}, kind
        texts = [(tmp_path / kind / f).read_text() for f in files if Path(f).suffix in (".c", ".cpp", ".ino")]
        assert sum("audio_push(samples, features)" in text and "listen(" in text for text in texts) == 1, kind
    library = tmp_path / "arduino"
    sketch = library / "examples/slide/slide.ino"
    assert "delay(" not in sketch.read_text()
    (library / "Arduino.h").write_text(ARDUINO)
    options = ("-std=gnu++17", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-include", "Arduino.h", "-x", "c++")
    subprocess.run(("arm-none-eabi-g++", *options, f"-I{library}", f"-I{library / 'src'}", str(sketch)), check=True)


def test_what_does_not_hear_is_refused(tmp_path: Path, front_end: Path) -> None:
    with pytest.raises(UsageError, match="not rows of 40 int8 features alone"):
        project = compiled(tmp_path / "p", features=9, hop=None)
        tvm_cascade.export(project, kind="zephyr", output=tmp_path / "z", front_end=front_end)
    with pytest.raises(UsageError, match="holds no front end: write one by"):
        tvm_cascade.export(project, kind="zephyr", output=tmp_path / "z", front_end=tmp_path)
