"""Folders for 64-bit Arm, linked here and run by QEMU's user mode: `make test-aarch64` brings TVM's libraries for it."""

# TVM has no stubs: pyright infers its constructors' types too narrowly.
# pyright: reportArgumentType=false
from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm_ffi import libinfo

from tvm_cascade import api
from tvm_cascade.deploy import library
from tvm_cascade.errors import MissingToolError
from tvm_cascade.runtime import Session
from tvm_cascade.staging.kernels.processors import accumulators, other_triple, processor, written
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.dynamic_layers import by_onnx_runtime, layer

TARGET = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"
WHEELS = os.environ.get("TVM_CASCADE_AARCH64")  # folder of TVM's wheels for aarch64, unpacked
runs = pytest.mark.skipif(WHEELS is None, reason="TVM's libraries for aarch64 come by make test-aarch64")


def branches() -> tvm.IRModule:
    """A convolutional network of two branches that may run at the same time, with Winograd's form, taps and a pool."""
    net = Net("float32", "NCHW", seed=3)
    x = net.conv(net.input((1, 3, 23, 19), "x"), 24, 3, stride=2, activation="relu")
    a = net.conv(net.conv(x, 20, 1, activation="relu"), 16, 3)
    return net.finish(net.max_pool(net.concat([a, net.depthwise(x, 3), net.conv(x, 7, 5)]), 3, 2, "same"))


def encoder() -> tvm.IRModule:
    """A layer of a transformer: attention of two heads over 21 tokens, layer norms and GELU."""
    random = np.random.default_rng(5)
    builder, wide, heads, length = relax.BlockBuilder(), 32, 2, 21
    x = relax.Var("x", relax.TensorType((1, length, wide), "float32"))

    def weights(*shape: int) -> relax.Expr:
        return relax.const((random.standard_normal(shape) * shape[0] ** -0.5).astype("float32"))

    def norm(v):
        scale, bias = (relax.const(np.full(wide, n, "float32")) for n in (1.1, 0.1))
        return builder.emit(relax.op.nn.layer_norm(v, scale, bias, axes=[-1]))

    def head(v):
        split = builder.emit(
            relax.op.reshape(builder.emit(relax.op.matmul(v, weights(wide, wide))), (1, length, heads, 16))
        )
        return builder.emit(relax.op.permute_dims(split, [0, 2, 1, 3]))

    with builder.function("main", [x]):
        with builder.dataflow():
            y = norm(x)
            q, k, v = head(y), head(y), head(y)
            scores = builder.emit(relax.op.matmul(q, builder.emit(relax.op.permute_dims(k, [0, 1, 3, 2]))))
            scores = builder.emit(relax.op.multiply(scores, relax.const(np.float32(0.25))))
            mixed = builder.emit(relax.op.matmul(builder.emit(relax.op.nn.softmax(scores, axis=-1)), v))
            joined = builder.emit(
                relax.op.reshape(builder.emit(relax.op.permute_dims(mixed, [0, 2, 1, 3])), (1, length, wide))
            )
            y = builder.emit(relax.op.add(x, builder.emit(relax.op.matmul(joined, weights(wide, wide)))))
            hidden = builder.emit(relax.op.nn.gelu(builder.emit(relax.op.matmul(norm(y), weights(wide, 64)))))
            out = builder.emit_output(relax.op.add(y, builder.emit(relax.op.matmul(hidden, weights(64, wide)))))
        builder.emit_func_output(out)
    return builder.finalize()


def test_a_target_says_its_system():
    target = processor(TARGET)
    assert other_triple(target) == "aarch64-linux-gnu" and written(target) == TARGET
    assert other_triple(processor("llvm")) == "" and "-mtriple" not in written(processor("llvm -mcpu=generic"))
    assert accumulators(TARGET) == 6  # three quarters of NEON's 32 registers
    assert library.cross_compiler_for("aarch64-unknown-linux-gnu") == "aarch64-linux-gnu-g++"


def test_without_a_cross_compiler_nothing_is_searched(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with pytest.raises(MissingToolError, match="apt-get install g\\+\\+-aarch64-linux-gnu"):
        api.stages(tmp_path / "no_such_model.onnx", target=TARGET, emit=tmp_path / "d")


def run_folder(folder: Path, data: np.ndarray) -> np.ndarray:
    """Build a folder's example.cc for 64-bit Arm and run it by QEMU on the only input; return the only output."""
    wheels = Path(WHEELS or "")
    libraries = [wheels / "tvm" / "lib", wheels / "tvm_ffi" / "lib"]
    compiler = [
        library.cross_compiler_for("aarch64-linux-gnu"),
        "-std=c++17",
        "-O1",
        "-o",
        folder / "example",
        folder / "example.cc",
    ]
    includes = [f"-I{path}" for path in (libinfo.find_include_path(), libinfo.find_dlpack_include_path())]
    linked = ["-Wl,--no-as-needed", libraries[0] / "libtvm_runtime.so", libraries[1] / "libtvm_ffi.so", "-ldl"]
    subprocess.run([*compiler, *includes, '-DTVM_RUNTIME_CUDA=""', *linked], check=True, timeout=300)
    data.tofile(folder / "in.bin")
    told = json.loads((folder / "metadata.json").read_text())
    name, result = told["inputs"][0]["name"], told["outputs"][0]["name"]
    found = ":".join(map(str, (*libraries, "/usr/aarch64-linux-gnu/lib")))
    run = [
        "qemu-aarch64",
        "-L",
        "/usr/aarch64-linux-gnu",
        "-E",
        f"LD_LIBRARY_PATH={found}",
        "./example",
        "--threads",
        "2",
    ]
    done = subprocess.run(
        [*run, "--input", f"{name}=in.bin", "--output", f"{result}=out.bin"],
        cwd=folder, capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return np.fromfile(folder / "out.bin", "float32").reshape(told["outputs"][0]["shape"])


@runs
@pytest.mark.parametrize("network", [branches, encoder])
@pytest.mark.parametrize("variant", ["sequential", "greedy"])
def test_folders_compute_the_same(network, variant, tmp_path):
    mod, folder = network(), tmp_path / "made"
    (x,) = mod["main"].params
    data = np.random.default_rng(8).standard_normal([int(d) for d in x.ty.shape.values]).astype("float32")
    (expected,) = Session(tvm.compile(mod, "llvm")).run(data)
    api.stages(mod, target=TARGET, threads=2, variant=variant, emit=folder)
    made = run_folder(folder, data)
    np.testing.assert_allclose(made, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@runs
@pytest.mark.parametrize("rows, depth, columns", [(1, 64, 40), (33, 128, 100), (8, 12, 5)])
def test_products_of_integers_are_dot_products(rows, depth, columns, tmp_path):
    path, folder = layer(tmp_path, rows, depth, columns, columns, columns), tmp_path / "made"
    x = np.random.default_rng(rows).standard_normal((1, rows, depth)).astype("float32")
    api.stages(path, target=TARGET, emit=folder)
    wanted = by_onnx_runtime(path, x)
    np.testing.assert_allclose(run_folder(folder, x), wanted, rtol=1e-6, atol=1e-6 * float(np.abs(wanted).max()))
    code = subprocess.run(["aarch64-linux-gnu-objdump", "-d", folder / "network.so"], capture_output=True, text=True)
    assert code.stdout.count("\tsdot\t") >= 4
