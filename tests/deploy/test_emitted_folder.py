"""Emitted folders: moved away and run with TVM alone, in Python and in C++; for GPUs they hold machine code."""
# pyright: reportArgumentType=false

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade import api
from tvm_cascade.cuda_toolkit import find_nvcc
from tvm_cascade.deploy import folder as folder_module
from tvm_cascade.deploy.folder import require_free
from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.runtime import Session
from tvm_cascade.runtime.shared_library import with_machine_code
from tvm_cascade.staging.kernels.processors import processor
from tvm_cascade.testing.builder import Net

SHAPE = (1, 6, 12, 10)


def branches() -> tvm.IRModule:
    """Two branches that may run at the same time, and two results."""
    net = Net("float32", "NCHW", seed=7)
    x = net.input(SHAPE, "x")
    a, b = (net.conv(net.conv(x, c, k, activation="relu"), 5, 3) for c, k in ((24, 3), (6, 5)))
    return net.finish([net.max_pool(net.concat([a, b]), 3, 2, "same"), a])


@pytest.fixture(scope="module")
def network():
    """The module, an input, and its results by TVM alone."""
    mod = branches()
    data = np.random.default_rng(8).standard_normal(SHAPE).astype("float32")
    return mod, data, Session(tvm.compile(mod, "llvm")).run(data)


@pytest.fixture(scope="module")
def folder(network, tmp_path_factory):
    """The folder of the network, moved away from where it was written; and what the command says of it."""
    place = tmp_path_factory.mktemp("emitted")
    data, text = api.stages(network[0], target="llvm", threads=2, variant="greedy", emit=place / "made")
    assert "emitted" in text and data["emitted"]["files"] == sorted(p.name for p in (place / "made").iterdir())
    return (place / "made").rename(place / "moved"), data


@pytest.fixture(scope="module")
def example(folder):
    """The folder's example.py as a module."""
    spec = importlib.util.spec_from_file_location("emitted_example", folder[0] / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def outputs(folder: Path) -> list[str]:
    return [spec["name"] for spec in json.loads((folder / "metadata.json").read_text())["outputs"]]


def test_the_folder_describes_itself(folder):
    place, data = folder
    told = json.loads((place / "metadata.json").read_text())
    assert told["inputs"] == [{"name": "x", "shape": list(SHAPE), "dtype": "float32"}]
    assert [spec["shape"] for spec in told["outputs"]] == [[1, 10, 6, 5], [1, 5, 12, 10]]
    assert (told["target"], told["threads"]) == ("llvm", 2) and told["architectures"] == data["emitted"][
        "architectures"
    ]
    stages = json.loads((place / "schedule.json").read_text())
    names = stages["operators"]
    groups = [[[names[i] for i in g] for g in s["groups"]] for s in stages["stages"]]
    assert groups == [s["groups"] for s in data["stages"]] and any(len(g) > 1 for g in groups)


def test_weights_are_in_a_file_once(folder):
    place, _ = folder
    told = json.loads((place / "metadata.json").read_text())["weights"]
    content = (place / told["file"]).read_bytes()
    assert told["bytes"] == len(content) and told["sha256"] == hashlib.sha256(content).hexdigest()
    library = (place / "network.so").read_bytes()
    assert told["tensors"]
    for spec in told["tensors"]:
        size = int(np.prod(spec["shape"])) * np.dtype(spec["dtype"]).itemsize
        assert size >= 4096 and spec["offset"] % 64 == 0
        assert content[spec["offset"] : spec["offset"] + size] not in library


def test_equal_weights_are_in_the_file_once(tmp_path):
    weights = np.random.default_rng(0).standard_normal((16, 16, 3, 3)).astype("float32")
    builder, x = relax.BlockBuilder(), relax.Var("x", relax.TensorType((1, 16, 8, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            value = x
            for _ in range(3):
                value = builder.emit(relax.op.nn.conv2d(value, relax.const(weights), padding=1))
            out = builder.emit_output(relax.op.nn.relu(value))
        builder.emit_func_output(out)
    api.stages(builder.get(), target="llvm", emit=tmp_path / "made")
    told = json.loads((tmp_path / "made" / "metadata.json").read_text())["weights"]
    assert len(told["tensors"]) == 2  # the first layer reads planes, the second and third blocks of channels


@pytest.mark.parametrize("damage", [lambda text: text[:-1], lambda text: bytes([text[0] ^ 1]) + text[1:]])
def test_weights_of_another_network_are_refused(folder, tmp_path, damage):
    place = shutil.copytree(folder[0], tmp_path / "other")
    (place / "weights.bin").write_bytes(damage((place / "weights.bin").read_bytes()))
    done = subprocess.run([sys.executable, str(place / "example.py")], capture_output=True, text=True, timeout=120)
    assert done.returncode == 2 and "weights" in done.stderr and done.stderr.count("\n") == 1


def test_python_runs_it_with_the_runtime_alone(folder, network, tmp_path):
    place, (_, data, wanted) = folder[0], network
    np.savez(tmp_path / "in.npz", x=data)
    missing = "import sys, runpy; sys.modules['tvm_cascade'] = sys.modules['tvm'] = None"
    alone = f"{missing}; del sys.argv[0]; runpy.run_path(sys.argv[0], {{}}, '__main__')"
    files = ["--inputs", str(tmp_path / "in.npz"), "--outputs", str(tmp_path / "out.npz"), "--threads", "2"]
    command = [sys.executable, "-c", alone, str(place / "example.py"), *files]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    got = np.load(tmp_path / "out.npz")
    for name, expected in zip(outputs(place), wanted, strict=True):
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5)


def test_a_missing_package_is_named(folder, tmp_path):
    missing = (
        "import sys, runpy; sys.modules['tvm_ffi'] = None; del sys.argv[0]; runpy.run_path(sys.argv[0], {}, '__main__')"
    )
    command = [sys.executable, "-c", missing, str(folder[0] / "example.py")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2 and done.stderr.endswith(": pip install apache-tvm numpy\n")


def test_threads_have_sessions_of_their_own(folder, example, network):
    place, (_, data, wanted) = folder[0], network
    runner = example.load(threads=2)
    with runner.session() as one, runner.session() as other:
        assert one is not other
    with runner.session() as third:
        assert third in (one, other)  # sessions that are free are used again
    last = outputs(place)[-1]
    results: list[np.ndarray] = []
    workers = [Thread(target=lambda: results.extend(runner.run({"x": data})[last] for _ in range(5))) for _ in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(results) == 20
    for result in results:
        np.testing.assert_allclose(result, wanted[-1], rtol=1e-4, atol=1e-5)


def test_results_stay_when_the_next_run_has_other_inputs(folder, example, network):
    place, (_, data, wanted) = folder[0], network
    runner = example.load()
    first, second = runner.run({"x": data}), runner.run({"x": -data})
    for name, expected in zip(outputs(place), wanted, strict=True):
        np.testing.assert_allclose(first[name], expected, rtol=1e-4, atol=1e-5)
        assert not np.array_equal(first[name], second[name])


def test_views_that_numpy_only_reads_are_not_written(folder, example, network, monkeypatch):
    """NumPy 2.0 makes every view by DLPack read-only."""
    place, (_, data, wanted) = folder[0], network
    view = np.from_dlpack

    def read_only(tensor):
        made = view(tensor)
        made.flags.writeable = False
        return made

    monkeypatch.setattr(np, "from_dlpack", read_only)
    runner = example.load()
    runner.run({"x": -data})
    results = runner.run({"x": data})
    for name, expected in zip(outputs(place), wanted, strict=True):
        np.testing.assert_allclose(results[name], expected, rtol=1e-4, atol=1e-5)


def test_wrong_inputs_are_refused_by_name(example, network):
    runner = example.load()
    with pytest.raises(ValueError, match=r"the inputs are named \['y'\], those of the network \['x'\]"):
        runner.run({"y": network[1]})
    with pytest.raises(ValueError, match="x is float64"):
        runner.run({"x": network[1].astype("float64")})
    with pytest.raises(ValueError, match="threads is 0"):
        example.load(threads=0)


def test_a_session_of_the_project_serves_one_thread(network):
    session = Session(tvm.compile(network[0], "llvm"))
    with session._alone(), pytest.raises(UsageError, match="make one for each thread"):
        session.run(network[1])
    assert len(session.run(network[1])) == 2


@pytest.mark.skipif(shutil.which("cmake") is None, reason="CMake is not installed: apt-get install cmake")
def test_cpp_runs_it_with_the_runtime_alone(folder, network, tmp_path):
    place, (_, data, wanted) = folder[0], network
    make = ["cmake", "-S", str(place), "-B", str(tmp_path / "b"), f"-DPython_EXECUTABLE={sys.executable}"]
    for command in (make, ["cmake", "--build", str(tmp_path / "b")]):
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
    data.tofile(tmp_path / "in.bin")
    program, names = tmp_path / "b" / "example", outputs(place)
    asked = [w for k, name in enumerate(names) for w in ("--output", f"{name}={tmp_path}/out{k}.bin")]
    run = [str(program), "--input", f"x={tmp_path}/in.bin"]
    done = subprocess.run([*run, *asked], cwd=place, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    for k, expected in enumerate(wanted):
        got = np.fromfile(tmp_path / f"out{k}.bin", "float32").reshape(expected.shape)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
    timed = subprocess.run([str(program)], cwd=place, capture_output=True, text=True, timeout=60)  # on random inputs
    assert timed.returncode == 0 and " ms, median of 20 runs " in timed.stdout, timed.stderr
    refused = subprocess.run([*run, "--output", "none=f"], cwd=place, capture_output=True, text=True, timeout=60)
    assert (refused.returncode, refused.stderr) == (1, "example: the network has no output none\n")
    shutil.copytree(place, tmp_path / "other")
    told = json.loads((place / "metadata.json").read_text()) | {"cudnn_kernels": 1}
    (tmp_path / "other" / "metadata.json").write_text(json.dumps(told))
    python = subprocess.run(run, cwd=tmp_path / "other", capture_output=True, text=True, timeout=60)
    assert python.returncode == 1 and python.stderr.endswith("called through Python: run example.py\n")
    linked = subprocess.run(["ldd", str(program)], capture_output=True, text=True).stdout
    assert "libtvm_runtime" in linked and "libtvm_compiler" not in linked and "libpython" not in linked


@pytest.mark.skipif(find_nvcc() is None, reason="no nvcc: make test-cuda installs it and runs these tests")
def test_a_folder_for_gpus_holds_machine_code_without_a_driver(network, tmp_path):
    arch = ("sm_80", "sm_90")
    api.stages(network[0], target="cuda", arch=arch, variant="greedy", streams=2, emit=tmp_path / "gpu")
    told = json.loads((tmp_path / "gpu" / "metadata.json").read_text())
    assert (told["target"], told["architectures"], told["ptx"]) == ("cuda", list(arch), "sm_90")
    data = (tmp_path / "gpu" / "network.so").read_bytes()
    assert b"__global__" not in data and images(data) == {(2, 80), (2, 90), (1, 90)}


def images(data: bytes) -> set[tuple[int, int]]:
    """The entries of the first fat binary in `data`: (1: PTX, 2: machine code; architecture)."""
    at = data.index(b"\x50\xed\x55\xba")
    header, size = struct.unpack_from("<HQ", data, at + 6)
    found, place, end = set(), at + header, at + header + size
    while place < end:
        kind, _, head, load = struct.unpack_from("<HHIQ", data, place)
        found.add((kind, struct.unpack_from("<I", data, place + 28)[0]))
        place += head + load
    return found


def test_sources_among_embedded_modules_are_compiled():
    """The library's blob: a placeholder for the host code, constants, and two modules for GPUs, one compiled before."""

    def text(value: bytes) -> bytes:
        return struct.pack("<Q", len(value)) + value

    table = struct.pack("<Q", 1) + text(b"kernel") + bytes(24)
    source = "float ä; __global__ void kernel() {}".encode()
    modules = [text(b"_lib"), text(b"constants") + text(b"weights")]
    modules += [
        text(b"cuda") + text(text(fmt) + table + text(code)) for fmt, code in ((b"cuda", source), (b"cubin", b"ELF"))
    ]
    tree = struct.pack("<6Q", 5, 0, 3, 3, 3, 3) + struct.pack("<4Q", 3, 1, 2, 3)
    body = tree + b"".join(modules)
    seen: list[str] = []
    made = with_machine_code(struct.pack("<Q", len(body)) + body, lambda s: seen.append(s) or b"image")
    wanted = body.replace(text(text(b"cuda") + table + text(source)), text(text(b"cubin") + table + text(b"image")))
    assert seen == [source.decode()] and made == struct.pack("<Q", len(wanted)) + wanted


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": "llvm", "arch": "sm_90", "emit": "d"}, "--arch is of --target cuda"),
        ({"target": "cuda", "arch": "90", "emit": "d"}, "--arch 90 is no architecture"),
        ({"target": "cuda", "emit": "d"}, "give one, as in --arch sm_90"),
        ({"target": "cuda", "arch": "sm_90"}, "--arch is of --emit DIR"),
        ({"target": "cuda", "gpu": 1}, "--gpu is of --emit DIR"),
        ({"target": "llvm", "winograd": 0}, "--winograd is of --emit DIR"),
        ({"target": "cuda", "arch": "sm_90", "emit": "", "winograd": 2}, "--winograd is of kernels for processors"),
        ({"target": "llvm", "emit": "", "winograd": 2, "cost": "measured"}, "leave one of them out"),
        ({"target": "llvm", "emit": "", "winograd": 5}, "winograd"),
        ({"target": "llvm", "batch": 4, "emit": "d"}, "set the batch with --input-shape"),
        ({"target": "llvm -mabi=lp64", "emit": "d"}, "takes -mtriple=NAME, -mcpu=NAME"),
    ],
)
def test_options_that_do_not_fit_are_refused_before_the_search(tmp_path, options, message):
    with pytest.raises(UsageError, match=message):
        api.stages(
            tmp_path / "no_such_model.onnx", **{**options, **({"emit": tmp_path / "d"} if "emit" in options else {})}
        )
    assert not (tmp_path / "d").exists()


def test_other_folders_are_not_replaced(folder, tmp_path):
    require_free(folder[0])
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="holds other things"):
        api.stages("no_such_model.onnx", target="llvm", emit=tmp_path)
    with pytest.raises(UsageError, match="is a file"):
        require_free(tmp_path / "notes.txt")
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_missing_linker_is_told_before_the_search(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(MissingToolError, match="C\\+\\+ compiler"):
        api.stages("no_such_model.onnx", target="llvm", emit=tmp_path / "d")


def test_another_processor_may_be_named():
    target = processor("llvm -mcpu=x86-64-v3 -mattr=+avx2,+fma")
    assert target.attrs["mcpu"] == "x86-64-v3" and [str(a) for a in target.attrs["mattr"]] == ["+avx2", "+fma"]


def test_an_optimized_graph_is_emitted_too(network, tmp_path):
    data, _ = api.optimize(network[0], target="llvm", budget=20, emit=tmp_path / "made")
    assert "network.so" in data["emitted"]["files"]


@pytest.mark.parametrize(("winograd", "found"), [(None, True), (0, False)])
def test_convolutions_are_computed_as_asked(tmp_path, monkeypatch, winograd, found):
    """By fewer multiplications where that is less work, or not at all."""
    lowered = []
    monkeypatch.setattr(folder_module, "build_library", lambda mod, *_: lowered.append(mod.script()))
    net = Net("float32", "NCHW", seed=2)
    x = net.conv(net.input((1, 16, 24, 24), "x"), 32, 1, activation="relu")
    mod = net.finish(net.relu(net.conv(net.conv(x, 32, 3, padding=1, activation="relu"), 32, 1)))
    api.stages(mod, target="llvm", emit=tmp_path / "made", winograd=winograd)
    assert ("wino_" in lowered[0]) == found


def test_a_gpu_that_measures_needs_no_folder():
    """Without one the number is looked for: there is none here."""
    with pytest.raises(MissingToolError):
        api.stages(branches(), target="cuda", cost="measured", gpu=99)


def test_token_ids_may_have_64_bits(tmp_path):
    ids, table = relax.Var("ids", relax.TensorType((1, 4), "int32")), np.arange(12, dtype="float32").reshape(6, 2)
    bb = relax.BlockBuilder()
    with bb.function("main", [ids]):
        with bb.dataflow():
            out = bb.emit_output(relax.op.take(relax.const(table), ids, 0))
        bb.emit_func_output(out)
    api.stages(bb.finalize(), target="llvm", emit=tmp_path / "made")
    spec = importlib.util.spec_from_file_location("emitted_tokens", tmp_path / "made" / "example.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    runner, data = module.load(), np.array([[5, 0, 3, 1]])
    assert data.dtype == np.int64
    np.testing.assert_array_equal(next(iter(runner.run({"ids": data}).values())), table[data])
    for wrong in (data + 2**32, data.astype("float32")):
        with pytest.raises(ValueError, match=r"the network takes int32\[1, 4\]: convert it"):
            runner.run({"ids": wrong})
