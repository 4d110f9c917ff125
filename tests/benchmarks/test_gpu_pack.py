"""The folder for a machine with a GPU: made of the small network, moved, rehearsed, resumed. No GPU is used."""

from __future__ import annotations

import ctypes
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.runtime.cuda import cuda_compiler
from tvm_cascade.staging.kernels.records import KernelRecords
from tvm_cascade.testing import compiled_once

GPU = Path(__file__).parents[2] / "benchmarks" / "gpu"
PYTHON = f"{sys.version_info[0]}.{sys.version_info[1]}"  # no other: its extension module would have to be downloaded
ENVIRONMENT = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "CUDA_VISIBLE_DEVICES": ""}


@pytest.fixture(scope="module")
def pack(tmp_path_factory):
    """The small network alone, in a folder that was moved after it was made."""
    if cuda_compiler() is None:
        pytest.skip("no nvcc: make test-cuda installs it and runs these tests")
    folder = tmp_path_factory.mktemp("gpu")
    command = [
        sys.executable,
        str(GPU / "pack.py"),
        "--out",
        str(folder / "made"),
        "--networks",
        "",
        "--python",
        PYTHON,
    ]
    subprocess.run([*command, "--processes", "1"], check=True, capture_output=True, text=True)
    return (folder / "made").rename(folder / "moved")


def _run(pack: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A run of the pack; `example.cc`, which is the same in all emitted folders, is compiled once."""
    launcher = f"{sys.executable};{compiled_once.__file__}"
    objects = {"CMAKE_CXX_COMPILER_LAUNCHER": launcher, compiled_once.FOLDER: str(pack.parent / "objects")}
    environment = ENVIRONMENT | objects
    return subprocess.run([pack / "run.sh", *options], capture_output=True, text=True, env=environment, cwd="/")


@contextmanager
def _emitted_alone(pack: Path, name: str) -> Iterator[None]:
    """Of the folders of the step `emitted`, the pack has this one."""
    path = pack / "manifest.json"
    whole = path.read_text()
    path.write_text(json.dumps(json.loads(whole) | {"emitted": [name]}))
    try:
        yield
    finally:
        path.write_text(whole)


def test_a_rehearsal_of_named_steps_walks_these(pack):
    done = _run(pack, "--dry-run", "--only", "thousand,sequential")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.findall(r"^step (\S+) minutes", done.stdout, re.M) == ["thousand", "sequential"]


def test_the_rehearsal_walks_every_step_and_leaves_the_folder_as_it_is(pack):
    """With one emitted folder: all of them are run below."""
    before = sorted(pack.rglob("*"))
    with _emitted_alone(pack, "llvm_fp32"):
        done = _run(pack, "--dry-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^emitted: [12] results", done.stdout, re.M)
    steps = re.findall(r"^step (\S+) minutes ([0-9.]+)$", done.stdout, re.M)
    names = [name for name, _ in steps]
    assert len(set(names)) == len(names)
    assert all(0 < float(minutes) < 9 for _, minutes in steps)
    expected = {
        "reference",
        "correctness",
        "memcheck",
        "racecheck",
        "emitted",
        "turns",
        "eager",
        "eager_fp16",
        "operators",
        "kernels",
        "cudnn",
        "thousand",
    }
    assert set(names) == expected | {s + p for s in ("sequential", "greedy", "ios") for p in ("", "_fp16")}
    assert sorted(pack.rglob("*")) == before


def test_without_a_gpu_it_says_so(pack):
    done = _run(pack)
    assert done.returncode == 2
    assert "no GPU here" in done.stderr and len(done.stderr.splitlines()) == 1


def test_the_pack_is_small_and_holds_machine_code(pack):
    shutil.unpack_archive(pack / "networks" / "small.tar.xz", pack.parent / "unpacked", "xztar")
    library = (pack.parent / "unpacked" / "network.so").read_bytes()
    elf = [m.start() for m in re.finditer(rb"\x7fELF\x02\x01", library)]
    assert any(int.from_bytes(library[at + 18 : at + 20], "little") == 190 for at in elf), "no image for a GPU"
    assert sum(p.stat().st_size for p in pack.rglob("*") if p.is_file()) < 20 << 20


def test_a_wrong_result_fails_the_rehearsal(pack, tmp_path):
    broken = shutil.copytree(pack, tmp_path / "broken")
    shutil.unpack_archive(broken / "networks" / "small.tar.xz", tmp_path / "parts", "xztar")
    shutil.copy(tmp_path / "parts" / "inputs.npz", tmp_path / "parts" / "expected.npz")
    shutil.make_archive(str(tmp_path / "small"), "xztar", tmp_path / "parts")
    shutil.copy(tmp_path / "small.tar.xz", broken / "networks")
    options = ["--dry-run", "--step", "correctness", "--work", str(tmp_path / "work")]
    rows = json.loads(_run(broken, *options).stdout)
    wrong = [row for row in rows if "wrong" in row]
    schedules, precisions = ("sequential", "greedy", "ios"), ("fp32", "fp16")
    assert {(row["schedule"], row["precision"]) for row in wrong} == {(s, p) for s in schedules for p in precisions}
    assert all("differs by more than" in row["wrong"] for row in wrong)


def test_emitted_folders_run_with_the_packed_tvm_alone(pack, tmp_path):
    """Programs for CUDA on the stand-in, those for a CPU against the expected outputs; a wrong one fails."""
    options = ["--dry-run", "--step", "emitted", "--work", str(tmp_path)]
    rows = json.loads(_run(pack, *options).stdout)
    examples = ["example.py", "example.cc"] if shutil.which("cmake") else ["example.py"]
    folders = ["cuda_fp32", "cuda_fp16", "llvm_fp32"]
    assert [(r["folder"], r["example"]) for r in rows] == [(f, e) for f in folders for e in examples]
    assert not any("wrong" in row for row in rows), rows
    assert all("note" in r if r["target"] == "cuda" else r["relative_error"] < 1e-4 for r in rows)
    place = tmp_path / "emitted" / "llvm_fp32"
    with np.load(place / "expected.npz") as held:
        np.savez(place / "expected.npz", **{k: held[k] + 1 for k in held.files})
    with _emitted_alone(pack, place.name):  # of the same folder, so that its programs are not built again
        wrong = json.loads(_run(pack, *options).stdout)
    assert len(wrong) == len(examples) and all("differs by more than" in r["wrong"] for r in wrong)


_RESUMED = """
import argparse, pathlib, sys, types
sys.path.insert(0, sys.argv[1] + "/there")
import main
ran, clock = [], [0.0]
main.time = types.SimpleNamespace(time=lambda: clock[0])
def perform(step, call):
    ran.append(step.name)
    clock[0] += 60 * step.minutes
    return {"rows": [], "seconds": 0.0} | ({"failed": "wrong"} if step.name == sys.argv[3] else {})
main.perform = perform
main.steps = lambda: [main.Step(n, m, None) for n, m in (("a", 5), ("b", 4), ("c", 1))]
again = [x for x in sys.argv[4:]]
args = argparse.Namespace(results=pathlib.Path(sys.argv[2]), minutes=8.5, again=again, only=None)
print(main.measure(args, None), *ran)
"""


def _resumed(pack: Path, results: Path, failing: str = "-", *again: str) -> list[str]:
    command = [sys.executable, "-B", "-c", _RESUMED, str(pack), str(results), failing, *again]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()[-1].split()


def test_a_call_stops_in_time_and_the_next_one_goes_on(pack, tmp_path):
    results = tmp_path / "results.json"
    assert _resumed(pack, results) == ["3", "a"]  # b would end after the ninth minute
    assert _resumed(pack, results, "c") == ["1", "b", "c"]
    assert _resumed(pack, results) == ["1"]  # a failed step is not hidden by another call
    assert _resumed(pack, results, "-", "c") == ["0", "c"]
    assert list(json.loads(results.read_text())["steps"]) == ["a", "b", "c"]


def test_results_of_another_pack_are_refused(pack, tmp_path):
    results = tmp_path / "results.json"
    results.write_text(json.dumps({"pack": {"networks": ["other"]}, "steps": {}}))
    assert _resumed(pack, results) == ["1"]


def test_kernel_times_become_records_once(tmp_path):
    features = ["conv2d", 64, 8, 8, 4, 2, 3, 1, [1, 2, 3]]
    rows = [{"network": "n", "features": features, "samples": [0.5, 0.25, 0.75]}]
    results = tmp_path / "results.json"
    sides = [([0.2, 0.1, 0.3], [0.1, 0.1, 0.1]), ([0.2], [0.199])]  # clearly faster; within the margin
    cudnn = [{"kernel": str(k), "shapes": "1x1", "ours": a, "theirs": b} for k, (a, b) in enumerate(sides)]
    steps = {"kernels": {"rows": rows * 2}, "cudnn": {"rows": [*cudnn, {"kernel": "2", "refused": "no engine"}]}}
    results.write_text(json.dumps({"gpu": "NVIDIA H200, 580.1", "pack": {"arch": "sm_90"}, "steps": steps}))
    command = [sys.executable, str(GPU / "pack.py"), "--records", str(results), "--database", str(tmp_path / "db")]
    command += ["--tuned", str(tmp_path / "tuned")]
    told = [subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines() for _ in range(2)]
    assert [lines[0] for lines in told] == ["1 records", "0 records"]
    assert told[0][1] == "2 kernels of cuDNN measured, 1 faster than ours"
    held = {r.kernel: (r.library, r.library_ms, r.target) for r in KernelRecords(tmp_path / "tuned")}
    assert held == {"0": ("cudnn", 0.1, "cuda -arch=sm_90"), "1": ("", 0.199, "cuda -arch=sm_90")}

    from tvm_cascade.cost.records import RecordStore

    (record,) = RecordStore(tmp_path / "db", "cuda:NVIDIA H200")
    assert record.median == 0.5 and record.groups[0][0].shape == (1, 2, 3)


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory):
    """The stand-in for CUDA's runtime library."""
    sys.path.insert(0, str(GPU))
    from library import make_stand_in  # type: ignore[import-not-found]

    folder = tmp_path_factory.mktemp("stand_in")
    make_stand_in(folder)
    return ctypes.CDLL(str(folder / "libcudart.so.13"))


def _streams(cuda, count: int) -> list[ctypes.c_void_p]:
    made = [ctypes.c_void_p() for _ in range(count)]
    for stream in made:
        cuda.cudaStreamCreate(ctypes.byref(stream))
    return made


def _wait(cuda, stream, other) -> int:
    event = ctypes.c_void_p()
    cuda.cudaEventCreate(ctypes.byref(event))
    cuda.cudaEventRecord(event, other)
    return cuda.cudaStreamWaitEvent(stream, event, 0)


def test_the_stand_in_refuses_what_cuda_refuses_in_a_capture(stand_in):
    first, second, stranger = _streams(stand_in, 3)
    graph, memory = ctypes.c_void_p(), ctypes.c_void_p()
    assert stand_in.cudaStreamBeginCapture(first, 0) == 0
    assert stand_in.cudaMalloc(ctypes.byref(memory), 16) == 900
    assert stand_in.cudaStreamSynchronize(first) == 900
    assert stand_in.stub_launch(stranger) == 906
    assert _wait(stand_in, second, first) == 0 and stand_in.stub_launch(second) == 0
    assert stand_in.cudaStreamEndCapture(first, ctypes.byref(graph)) == 904  # second was not joined
    assert stand_in.cudaStreamBeginCapture(first, 0) == 0
    assert _wait(stand_in, second, first) == 0 and stand_in.stub_launch(second) == 0
    assert _wait(stand_in, first, second) == 0
    assert stand_in.cudaStreamEndCapture(first, ctypes.byref(graph)) == 0
    assert stand_in.cudaMalloc(ctypes.byref(memory), 16) == 0


def test_steps_of_larger_batches(pack, tmp_path):
    """Those of a pack whose small network stands for one of several images."""
    batched = shutil.copytree(pack, tmp_path / "batched")
    manifest = json.loads((batched / "manifest.json").read_text())
    (batched / "manifest.json").write_text(json.dumps(manifest | {"batched": ["small"]}))
    steps = subprocess.run(
        [sys.executable, "-B", "-c", "import main; print(*(s.name for s in main.steps() if 'small' in s.name))"],
        capture_output=True, text=True, check=True, cwd=batched / "there",
    ).stdout.split()  # fmt: skip
    compiled = [f"{name}-small-{p}" for p in ("float32", "float16") for name in ("overhead", "compile")]
    assert steps == ["batch-small", "batch_torch-small", *compiled]
    options = ["--dry-run", "--step", "batch-small", "--work", str(tmp_path / "work")]
    rows = json.loads(_run(batched, *options).stdout)
    assert len(rows) == 12 and not any("wrong" in row for row in rows)
    assert all(row["batch"] == 1 for row in rows) and sum("speedup" in row for row in rows) == 6


def test_images_of_a_large_batch_repeat(tmp_path):
    """What is expected of seven of them is expected of all; a name tells the batch."""
    sys.path.insert(0, str(GPU))
    import networks  # type: ignore[import-not-found]

    from tvm_cascade.passes.substitution_read import read_function
    from tvm_cascade.substitution.evaluate import run

    made = networks.read(networks.small, 9)
    assert {x.shape[0] for x in (*made.inputs, *made.expected)} == {networks.DISTINCT}
    assert len({x.tobytes() for x in made.inputs[0]}) == networks.DISTINCT
    graph = read_function(made.mod["main"])
    whole = [np.resize(x, (9, *x.shape[1:])) for x in made.inputs]
    (name,) = (str(r.node["name"]) for r in graph.dag.inputs)
    (value,) = run(graph.dag, {**graph.constants, name: whole[0]})
    np.testing.assert_allclose(value, np.resize(made.expected[0], value.shape), atol=1e-5)
    assert networks.batch_of(networks.of_batch("randwire", 32)) == ("randwire", 32)
    assert networks.batch_of("inception_v3") == ("inception_v3", 1)


def test_the_page_has_larger_batches_where_they_were_measured(tmp_path):
    kept = GPU.parent / "results" / "gpu_h200.json"
    results = json.loads(kept.read_text())
    rows = [
        {"network": "squeezenet_b32", "precision": "fp16", "schedule": s, "median_ms": ms, "speedup": 1.0}
        for s, ms in (("sequential", 2.0), ("greedy", 1.0), ("ios", 1.25))
    ]
    compared = [{"network": "squeezenet_b32", "precision": "fp16", "relative_error": 0.25}]
    results["steps"]["batch-squeezenet_b32"] = {"rows": compared + rows}
    torch = [{"network": "squeezenet_b32", "precision": "float16", "torch": "eager", "median_ms": 4.0}]
    results["steps"]["batch_torch-squeezenet_b32"] = {"rows": torch}
    (tmp_path / "results.json").write_text(json.dumps(results))
    pages = [
        subprocess.run(
            [sys.executable, str(GPU / "table.py"), str(path)], capture_output=True, text=True, check=True
        ).stdout
        for path in (kept, tmp_path / "results.json")
    ]
    assert "batch" not in pages[0].partition("## Schedules")[2]
    assert "| SqueezeNet | 32 | fp16 | 2.000 | 1.000 | 1.250 | 32000 | 4.000 | 4.00 |" in pages[1]
    assert "fp16 2.5e-01" in pages[1]
