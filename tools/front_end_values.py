"""Write `tests/micro/front_end.json`: the features that TensorFlow Lite Micro's own audio front end makes of a chirp.

    python tools/front_end_values.py TFLITE_MICRO KISSFFT

The arguments are checkouts of tensorflow/tflite-micro and of mborgerding/kissfft at tag v130, which the first takes with a patch.
gcc, g++ and patch have to be installed. Where `pymicro-features` is installed, its rows are compared too.
"""

from __future__ import annotations

import ctypes
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.request import FrontEndRequest
from tvm_cascade.testing.front_end import CONFIGURATIONS, chirp

VALUES = Path(__file__).parents[1] / "tests" / "micro" / "front_end.json"
LIBRARY = "tensorflow/lite/experimental/microfrontend/lib"
PYMICRO_SCALE = 0.0390625  # of a feature as pymicro-features returns it
CALLER = """
extern "C" {
#include "LIB/frontend.h"
#include "LIB/frontend_util.h"
int features(int rate, int window, int step, int channels, float low, float high, int gain, const short *sound, int samples,
             unsigned short *rows) {
    FrontendConfig config;
    FrontendState state;
    int made = 0;
    FrontendFillConfigWithDefaults(&config);
    config.window.size_ms = window;
    config.window.step_size_ms = step;
    config.filterbank.num_channels = channels;
    config.filterbank.lower_band_limit = low;
    config.filterbank.upper_band_limit = high;
    config.pcan_gain_control.enable_pcan = gain;
    if (!FrontendPopulateState(&config, &state, rate)) {
        return -1;
    }
    while (samples > 0) {
        size_t used = 0;
        const FrontendOutput output = FrontendProcessSamples(&state, sound, samples, &used);
        sound += used;
        samples -= used;
        for (size_t k = 0; k < output.size; ++k) {
            rows[made++] = output.values[k];
        }
    }
    return made;
}
}
""".replace("LIB", LIBRARY)


def build(tflm: Path, kissfft: Path, folder: Path) -> Any:
    """Compile the front end with its patched transform, and load it."""
    subprocess.run(("cp", "-r", kissfft, folder / "kissfft"), check=True)
    with (tflm / "third_party/kissfft/kissfft.patch").open() as patch:
        subprocess.run(("patch", "-p1", "-s"), cwd=folder / "kissfft", stdin=patch, check=True)
    (folder / "caller.cc").write_text(CALLER)
    left_out = ("_test", "_main", "_io", "_generator")
    named = [p for p in (tflm / LIBRARY).glob("*.c*") if not p.stem.endswith(left_out)]
    sources = [*(str(p) for p in sorted(named)), "caller.cc"]
    for source in sources:
        compiler = "gcc" if source.endswith(".c") else "g++"
        words = (compiler, "-O2", "-fPIC", f"-I{tflm}", "-Ikissfft", "-c", source, "-o", f"{Path(source).stem}.o")
        subprocess.run(words, cwd=folder, check=True)
    objects = sorted(p.name for p in folder.glob("*.o"))
    subprocess.run(("g++", "-shared", *objects, "-o", "front_end.so", "-lm"), cwd=folder, check=True)
    return ctypes.CDLL(str(folder / "front_end.so"))


def rows_of(library: Any, asked: FrontEndRequest) -> list[list[int]]:
    """Return the rows of features of `chirp`."""
    sound, made = chirp(asked), (ctypes.c_ushort * 100_000)()
    numbers = (asked.sample_rate, asked.window_ms, asked.step_ms, asked.channels)
    band = (ctypes.c_float(asked.low_hz), ctypes.c_float(asked.high_hz))
    data = sound.ctypes.data_as(ctypes.c_void_p)
    count = library.features(*numbers, *band, int(asked.gain), data, len(sound), made)
    return np.array(made[:count], int).reshape(-1, asked.channels).tolist()


def compare_with_pymicro(rows: list[list[int]], asked: FrontEndRequest) -> None:
    """Compare the rows of the configuration that pymicro-features has with its rows, where it is installed."""
    try:
        from pymicro_features import MicroFrontend  # pyright: ignore[reportMissingImports]
    except ImportError:
        print("pymicro-features is not installed: not compared")
        return
    front_end, data, found = MicroFrontend(), chirp(asked).tobytes(), list[list[int]]()
    for at in range(0, len(data) - 319, 320):
        features = front_end.process_samples(data[at : at + 320]).features
        found += [[round(f / PYMICRO_SCALE) for f in features]] if features else []
    print("pymicro-features:", "equal" if found == rows[: len(found)] and found else "DIFFERENT")


def main() -> None:
    """Write the file."""
    tflm, kissfft = (Path(p).resolve() for p in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        library = build(tflm, kissfft, Path(folder))
        made = {name: rows_of(library, asked) for name, asked in CONFIGURATIONS.items()}
    compare_with_pymicro(made["pymicro"], CONFIGURATIONS["pymicro"])
    lines = (f'  "{name}": {json.dumps(rows, separators=(",", ":"))}' for name, rows in made.items())
    VALUES.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
