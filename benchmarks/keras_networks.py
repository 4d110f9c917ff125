"""Small Keras networks through TFLite's converter, against LiteRT's reference kernels.

`python benchmarks/keras_networks.py [--tensorflow PYTHON] [--files FOLDER] [NAME ...]` converts the networks of `keras_files.py`
with the interpreter PYTHON, by default this one where it has TensorFlow, and writes `benchmarks/results/keras.md`; exit status
1 where one is wrong, crashes or hangs. Without TensorFlow it says so, and ends with status 0. FOLDER keeps the files, and what it
has is not converted again.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # every case is a fork of this process

from tvm_cascade.testing.forked import PASS, REFUSED, Outcome, forked
from tvm_cascade.testing.single_operators import UNKNOWN, Drawn, examined

RESULTS = Path(__file__).parent / "results" / "keras.md"
KINDS = ("float", "dynamic", "int8", "int16x8")
SECONDS = 240  # of processor time for one network
HEAD = """# Small Keras networks through TFLite's converter

Networks of `benchmarks/keras_files.py`, converted in float, with int8 weights alone (dynamic), to int8, and to int16 with int8
weights, against LiteRT's reference kernels: integers bit for bit, floats within 1e-5 of the largest. Not converted: TFLite's
converter refuses it; unknown: the reference does.

"""


def table(found: dict[tuple[str, str], Outcome]) -> str:
    """What became of every file, and the reasons of those that did not pass."""
    lines = ["| network | " + " | ".join(KINDS) + " |", "| --- |" + " --- |" * len(KINDS)]
    for name in dict.fromkeys(name for name, _ in found):
        lines.append(
            f"| {name} | " + " | ".join(found[name, k].verdict if (name, k) in found else "" for k in KINDS) + " |"
        )
    counts = Counter(o.verdict for o in found.values())
    lines = [f"{len(found)} files: " + ", ".join(f"{v} {n}" for v, n in counts.most_common()), "", *lines]
    told = [f"| {n} | {k} | {o.reason.replace('|', '/')[:300]} |" for (n, k), o in found.items() if o.verdict != PASS]
    return (
        "\n".join([*lines, *(["", "| network | kind | reason |", "| --- | --- | --- |", *told] if told else [])]) + "\n"
    )


def outcomes(folder: Path, jobs: int) -> dict[tuple[str, str], Outcome]:
    """What becomes of every file of a folder, by network and kind."""
    found = {_key(p): Outcome("not converted", p.read_text()) for p in sorted(folder.glob("*.txt"))}
    cases = (Drawn(p.name, p.read_bytes()) for p in sorted(folder.glob("*.tflite")))
    for case, outcome in forked(cases, examined, jobs, SECONDS):
        found[_key(Path(case.name))] = outcome
        if outcome.verdict != PASS:
            print(f"{case.name}: {outcome.verdict} {outcome.reason}", flush=True)
    return {key: found[key] for key in sorted(found, key=lambda k: (k[0], KINDS.index(k[1])))}


def _key(path: Path) -> tuple[str, str]:
    name, kind, _ = path.name.split(".")
    return name, kind


def has_tensorflow(python: str) -> bool:
    """Whether an interpreter is there and has TensorFlow."""
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('tensorflow') is None)"
    return shutil.which(python) is not None and subprocess.run([python, "-c", look], check=False).returncode == 0


def converted(python: str, folder: Path, names: Sequence[str]) -> None:
    """Fill a folder with the files of networks."""
    command = [python, str(Path(__file__).with_name("keras_files.py")), str(folder), *names]
    subprocess.run(command, check=True, env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"})


def main() -> int:
    parser = argparse.ArgumentParser(description="Small Keras networks through TFLite's converter")
    parser.add_argument("names", nargs="*", help="networks of keras_files.py (default: all, and the table is written)")
    parser.add_argument(
        "--tensorflow", default=os.environ.get("TVM_CASCADE_TENSORFLOW", sys.executable), metavar="PYTHON"
    )
    parser.add_argument("--files", type=Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes at a time")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folder = args.files or Path(made)
        if not any(folder.glob("*.tflite")):
            if not has_tensorflow(args.tensorflow):
                print("no TensorFlow here: give an interpreter that has it by --tensorflow, or TVM_CASCADE_TENSORFLOW")
                return 0
            converted(args.tensorflow, folder, args.names)
        found = outcomes(folder, args.jobs)
    said = table(found)
    print(said.splitlines()[0])
    if not args.names:
        RESULTS.write_text(HEAD + said)
    return int(any(o.verdict not in (PASS, REFUSED, UNKNOWN, "not converted") for o in found.values()))


if __name__ == "__main__":
    sys.exit(main())
