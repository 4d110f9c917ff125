"""Instructions of one inference on 64-bit Arm beside ONNX Runtime, counted by a plugin of QEMU's user mode.

    make aarch64                                     # TVM's libraries for it, in .venv/aarch64
    python benchmarks/aarch64_instructions.py --tvm .venv/aarch64 [--python ROOT] [--networks bert_tiny_int8 ...]

Both run as on a Neoverse N1, on one thread; a count is the difference between runs of few and of more inferences. `--python`: a
folder with Debian's python3.11 for arm64 and what it needs (`dpkg -x`), proc/cpuinfo of such a processor (QEMU shows this
machine's), and `site`, the unpacked wheels of numpy and onnxruntime; without it ours are counted alone. Python's start differs
by 3 million instructions from run to run, which are 0.15 million of a count.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import onnx
from cpu_networks import NETWORKS, inputs_of
from tvm_ffi import libinfo

from tvm_cascade import api

_TARGET = "llvm -mtriple=aarch64-linux-gnu -mcpu=neoverse-n1"
_FORMS = {"ours": _TARGET, "without sdot": f"{_TARGET} -mattr=-dotprod"}
_FEW, _MORE = 2, 22  # inferences
_PLUGIN = """#include <stdint.h>
#include <stdio.h>
#include <stddef.h>
typedef uint64_t id_t_;
struct qemu_plugin_tb;
void qemu_plugin_register_vcpu_tb_trans_cb(id_t_, void (*)(id_t_, struct qemu_plugin_tb *));
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int, void *, uint64_t);
void qemu_plugin_register_atexit_cb(id_t_, void (*)(id_t_, void *), void *);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
int qemu_plugin_version = 1;
static uint64_t total;
static void block(id_t_ id, struct qemu_plugin_tb *tb) {
  qemu_plugin_register_vcpu_tb_exec_inline(tb, 0, &total, qemu_plugin_tb_n_insns(tb));
}
static void end(id_t_ id, void *data) { fprintf(stderr, "instructions %llu\\n", (unsigned long long)total); }
int qemu_plugin_install(id_t_ id, const void *info, int count, char **words) {
  qemu_plugin_register_vcpu_tb_trans_cb(id, block);
  qemu_plugin_register_atexit_cb(id, end, 0);
  return 0;
}
"""
_SESSION = """import sys
root, folder, runs = sys.argv[1], sys.argv[2], int(sys.argv[3])
sys.path.insert(0, root + "/site")
import numpy as np, onnxruntime
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = options.inter_op_num_threads = 1
session = onnxruntime.InferenceSession(folder + "/model.onnx", options, providers=["CPUExecutionProvider"])
data = dict(np.load(folder + "/inputs.npz"))
for _ in range(runs):
    session.run(None, data)
"""


def main() -> None:
    """Count what the command line asks for and print a line for each network."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tvm", type=Path, required=True, help="folder of TVM's wheels for aarch64, unpacked")
    parser.add_argument("--python", type=Path, help="folder of a Python for arm64 with ONNX Runtime")
    parser.add_argument("--networks", nargs="*", default=["bert_tiny_int8", "llama_block_int8", "bert_tiny"])
    args = parser.parse_args()
    for name in args.networks:
        with tempfile.TemporaryDirectory() as folder:
            print({"network": name, **measure(name, Path(folder), args.tvm.absolute(), args.python)}, flush=True)


def measure(name: str, folder: Path, tvm: Path, python: Path | None) -> dict[str, float]:
    """Return millions of instructions of an inference: of the folder, of one without dot products, and of ONNX Runtime."""
    (folder / "plugin.c").write_text(_PLUGIN)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", folder / "plugin.so", folder / "plugin.c"], check=True)
    model = NETWORKS[name]()
    onnx.save(model, folder / "model.onnx")
    np.savez(folder / "inputs.npz", **inputs_of(model))  # pyright: ignore[reportArgumentType]
    counts = {}
    for form, target in _FORMS.items():
        made = folder / form.replace(" ", "_")
        api.stages(folder / "model.onnx", target=target, threads=1, emit=made)
        counts[form] = _difference(folder, Path("/usr/aarch64-linux-gnu"), made, *_example(made, tvm))
    if python is not None:
        (folder / "session.py").write_text(_SESSION)
        words = [python / "usr/bin/python3.11", "-S", folder / "session.py", python.absolute(), folder]
        counts["onnxruntime"] = _difference(folder, python, folder, words, {"PYTHONHASHSEED": "0"})
    return counts


def _example(made: Path, tvm: Path) -> tuple[list[str | Path], dict[str, str]]:
    """Build a folder's example.cc; return the command without the number of runs, and the environment."""
    libraries = [tvm / "tvm" / "lib", tvm / "tvm_ffi" / "lib"]
    includes = [f"-I{path}" for path in (libinfo.find_include_path(), libinfo.find_dlpack_include_path())]
    linked = ["-Wl,--no-as-needed", libraries[0] / "libtvm_runtime.so", libraries[1] / "libtvm_ffi.so", "-ldl"]
    command = ["aarch64-linux-gnu-g++", "-std=c++17", "-O1", "-o", made / "example", made / "example.cc", *includes]
    subprocess.run([*command, '-DTVM_RUNTIME_CUDA=""', *linked], check=True)
    found = ":".join(map(str, (*libraries, "/usr/aarch64-linux-gnu/lib")))
    return [made / "example", "--repeat"], {"LD_LIBRARY_PATH": found}


def _difference(folder: Path, root: Path, place: Path, command: list[str | Path], environment: dict[str, str]) -> float:
    """Return millions of instructions of one of the inferences that a command takes the number of last."""
    qemu = ["qemu-aarch64", "-cpu", "neoverse-n1", "-plugin", folder / "plugin.so", "-L", root]
    qemu += [word for name, value in environment.items() for word in ("-E", f"{name}={value}")]
    totals = []
    for runs in (1, _FEW, _MORE):  # the first fills caches of compiled Python
        done = subprocess.run([*qemu, *command, str(runs)], cwd=place, capture_output=True, text=True, check=True)
        totals.append(int(done.stderr.split("instructions")[-1]))
    return round((totals[2] - totals[1]) / (_MORE - _FEW) / 1e6, 2)


if __name__ == "__main__":
    main()
