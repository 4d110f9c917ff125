"""The audio front end: C of several configurations against an oracle and public numbers, and with micro_speech behind it."""

from __future__ import annotations

import ctypes
import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.emit.front_end import front_end, write_front_end
from tvm_cascade.emit.image import read_image
from tvm_cascade.emit.single_log1p import single_log1p
from tvm_cascade.emit.toolchain import build_image
from tvm_cascade.errors import UsageError
from tvm_cascade.request import FrontEndRequest
from tvm_cascade.runs.emulator import emulator_command
from tvm_cascade.testing.front_end import CONFIGURATIONS, FrontEndOracle, chirp

BOARD = load_board("mps2-an386")
WARNINGS = (
    *(
        "-std=c99",
        "-O2",
        "-Wall",
        "-Wextra",
        "-Wconversion",
        "-Wshadow",
        "-pedantic",
        "-Werror",
        "-Wcast-align",
        "-Wundef",
    ),
    *(
        "-Wcast-qual",
        "-Wwrite-strings",
        "-Wstrict-prototypes",
        "-Wmissing-prototypes",
        "-Wdouble-promotion",
        "-Wformat=2",
    ),
)


def built(asked: FrontEndRequest, folder: Path) -> ctypes.CDLL:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    write_front_end(asked, folder)
    subprocess.run(("gcc", *WARNINGS, "-shared", "-fPIC", f"{asked.name}.c", "-o", "f.so"), cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "f.so"))


def heard(library: ctypes.CDLL, asked: FrontEndRequest, sound: np.ndarray) -> list[list[int]]:
    """The rows that the C makes of a sound."""
    step, rows = asked.step_ms * asked.sample_rate // 1000, []
    made = (ctypes.c_uint16 * asked.channels)()
    getattr(library, f"{asked.name}_reset")()
    for at in range(0, len(sound) - step + 1, step):
        piece = np.ascontiguousarray(sound[at : at + step], "int16")
        if getattr(library, f"{asked.name}_push")(piece.ctypes.data_as(ctypes.c_void_p), made):
            rows.append(list(made))
    return rows


def sound(count: int, seed: int) -> np.ndarray:
    """Tones that glide, noise and silence by turns, from soft to clipped."""
    rng, t = np.random.default_rng(seed), np.arange(count)
    glide = np.sin(t * (0.02 + 0.9 * (t % 20000) / 20000)) * 30000
    loud = np.repeat(rng.choice([0.0, 0.001, 0.05, 0.5, 3.0], count // 700 + 1), 700)[:count]
    return np.clip((glide + rng.normal(0, 6000, count)) * loud, -32768, 32767).astype("int16")


def test_public_numbers(tmp_path: Path) -> None:
    """The rows that TensorFlow's tests of its own front end expect of a wave of four samples."""
    asked = FrontEndRequest(sample_rate=1000, window_ms=25, step_ms=10, channels=2, low_hz=8.0, high_hz=450.0)
    expected = [[479, 425], [436, 378], [410, 350], [391, 325], [374, 308], [362, 292], [352, 275]]
    wave = np.array([0, 32767, 0, -32768] * 24, "int16")
    oracle = FrontEndOracle(rate=1000, window=25, step=10, channels=2, low=8.0, high=450.0)
    assert list(oracle.rows(wave[: 25 + 6 * 10])) == expected
    assert heard(built(asked, tmp_path), asked, wave)[:7] == expected


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_features_of_a_loud_chirp_are_those_of_tensorflow_lite_micro(tmp_path: Path, name: str) -> None:
    """Rows that its own C library made of the same sound (tools/front_end_values.py)."""
    asked = CONFIGURATIONS[name]
    expected = json.loads((Path(__file__).parent / "front_end.json").read_text())[name]
    assert len(expected) > 12 and len({tuple(row) for row in expected}) == len(expected)
    rows = heard(built(asked, tmp_path), asked, chirp(asked))
    assert rows == expected[: len(rows)] and len(rows) >= len(expected) - 1


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (0.0, 0.0),
        (1e-12, 1e-12),
        (0.1785714, 0.16430303),
        (0.4142139, 0.34657383),
        (2.5, 1.252763),
        (10.714286, 2.4608092),
    ],
)
def test_logarithms_are_those_of_c_libraries(x: float, expected: float) -> None:
    assert single_log1p(np.float32(x)) == np.float32(expected)


@pytest.mark.parametrize(
    "rate, window, step, channels, gain",
    [(16000, 30, 20, 40, True), (8000, 32, 16, 20, True), (16000, 25, 10, 32, False)],
)
def test_the_c_equals_the_oracle(tmp_path: Path, rate: int, window: int, step: int, channels: int, gain: bool) -> None:
    asked = FrontEndRequest(
        sample_rate=rate, window_ms=window, step_ms=step, channels=channels, high_hz=rate * 0.46, gain=gain
    )
    library, oracle = (
        built(asked, tmp_path),
        FrontEndOracle(
            rate=rate,
            window=window * rate // 1000,
            step=step * rate // 1000,
            channels=channels,
            high=rate * 0.46,
            gain=gain,
        ),
    )
    wave = sound(rate * 2, rate + window)
    wave[rate : rate + 40] = -32768
    rows = heard(library, asked, wave)
    expected = list(oracle.rows(wave))[: len(rows)]
    assert rows == expected and len({tuple(r) for r in rows}) > len(rows) // 2
    assert (
        heard(library, asked, wave[:rate]) == rows[: len(heard(library, asked, wave[:rate]))]
    )  # reset, and the same again


@pytest.mark.parametrize(
    "wrong, message",
    [
        ({"high_hz": 9000.0}, "too near half the sample rate"),
        ({"step_ms": 40}, "at most --window-ms"),
        ({"name": "9"}, "no C identifier"),
        ({"smoothing_bits": 2}, "at least --smoothing-bits 3 and --gain-bits 15"),
        ({"sample_rate": 1000, "window_ms": 2, "step_ms": 1}, "holds 2 samples"),
    ],
)
def test_what_makes_no_front_end_is_refused(wrong: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        front_end(FrontEndRequest(**wrong))


SPEECH_MAIN = """
#include "audio.c" /* one file more to compile would be one more to tell CMake of */
#include "port.h"
#include "speech.h"

#define ROWS 49

int main(void)
{
    static int8_t window[ROWS * AUDIO_CHANNELS];
    int16_t samples[AUDIO_STEP];
    uint16_t features[AUDIO_CHANNELS];
    int8_t labels[SPEECH_OUTPUT0_SIZE];
    const struct speech_inputs inputs = {window};
    struct speech_outputs outputs = {labels};
    port_open();
    memset(window, -128, sizeof window);
    while (port_read(samples, sizeof samples) == sizeof samples) {
        if (audio_push(samples, features) == 0) {
            continue;
        }
        memmove(window, window + AUDIO_CHANNELS, sizeof window - AUDIO_CHANNELS);
        audio_quantize(features, window + sizeof window - AUDIO_CHANNELS);
        if (speech_run(&inputs, &outputs) != SPEECH_OK) {
            port_exit(1);
        }
        port_write(window + sizeof window - AUDIO_CHANNELS, AUDIO_CHANNELS);
        port_write(labels, sizeof labels);
    }
    port_exit(0);
    return 0;
}
"""


@pytest.mark.usefixtures("quick_host", "emulator")
def test_from_sound_to_label_on_the_emulator(tmp_path: Path, models: Path) -> None:
    """Every frame of a sound, by the front end and micro_speech on a Cortex-M4: features by the oracle, labels by LiteRT.
    TVM_CASCADE_SWEEP=15 makes the sound a minute long."""
    interpreter = pytest.importorskip("ai_edge_litert.interpreter")
    seconds = 4 * int(os.environ.get("TVM_CASCADE_SWEEP", "1"))
    model, wave = models / "micro_speech_quantized.tflite", sound(16000 * seconds, 7)
    tvm_cascade.compile(model, target="cortex-m4", output=tmp_path / "p", name="speech")
    write_front_end(FrontEndRequest(), tmp_path / "audio")
    with pytest.raises(UsageError, match="exists and is not empty; name a new folder"):
        write_front_end(FrontEndRequest(), tmp_path / "p")
    shutil.copytree(tmp_path / "audio", tmp_path / "p", dirs_exist_ok=True)
    (tmp_path / "p" / "main.c").write_text(SPEECH_MAIN)
    elf = build_image(read_image(tmp_path / "p"), BOARD).elf
    (tmp_path / "inputs.bin").write_bytes(wave.tobytes())
    command = emulator_command(BOARD, elf)
    subprocess.run(command, cwd=tmp_path, stdin=subprocess.DEVNULL, capture_output=True, timeout=900, check=True)
    made = np.frombuffer((tmp_path / "results.bin").read_bytes(), "int8").reshape(-1, 44)
    reference = interpreter.Interpreter(
        model_content=model.read_bytes(), experimental_op_resolver_type=interpreter.OpResolverType.BUILTIN_REF
    )
    reference.allocate_tensors()
    (taken,), (given,) = reference.get_input_details(), reference.get_output_details()
    window, labels = np.full((49, 40), -128, "int8"), set[bytes]()
    rows = list(FrontEndOracle().rows(wave[: len(wave) // 320 * 320]))
    assert len(made) == len(rows) == (len(wave) - 480) // 320 + 1
    for row, found in zip(rows, made, strict=True):
        quantized = np.minimum((np.array(row) * 256 + 333) // 666 - 128, 127).astype("int8")
        window = np.concatenate([window[1:], quantized[None]])
        reference.set_tensor(taken["index"], window.reshape(1, -1))
        reference.invoke()
        expected = reference.get_tensor(given["index"])[0]
        np.testing.assert_array_equal(found, [*quantized, *expected])
        labels.add(expected.tobytes())
    assert len(labels) > len(rows) // 4
