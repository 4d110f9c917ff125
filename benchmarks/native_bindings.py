"""The inner loop of a search, compiled in five ways: seconds of the import and of the first call, of an empty call, of a node.

    pip install numba cython nanobind apache-tvm-ffi setuptools ninja
    python bindings.py

Every way runs the same depth-first search (buffers in the given order, each at every offset that is 0 or the end of one placed
before) and must count the same nodes. The sources are written to a temporary folder and compiled there. Numba runs twice: the
second process finds the first one's cache. Needs gcc and g++, and nothing of this project.
"""

import subprocess
import sys
import sysconfig
import tempfile
import time
from pathlib import Path

C = r"""
#include <stdint.h>
typedef const int64_t *In;
STORAGE int64_t search(int64_t n, In size, In lower, In upper, int64_t capacity, int64_t nodes, int64_t *offset) {
    int64_t count = 0, next[64], depth = 0;
    next[0] = -1;
    while (depth >= 0 && count < nodes) {
        int64_t k = next[depth]++, at = k < 0 ? 0 : offset[k] + size[k];
        if (k >= depth) { depth--; continue; }
        if (k >= 0 && !(lower[k] < upper[depth] && lower[depth] < upper[k])) continue;
        int clash = at + size[depth] > capacity;
        for (int64_t j = 0; j < depth && !clash; j++)
            clash = lower[j] < upper[depth] && lower[depth] < upper[j] && at < offset[j] + size[j]
                    && offset[j] < at + size[depth];
        if (clash) continue;
        count++;
        offset[depth] = at;
        if (depth + 1 == n) continue;
        next[++depth] = -1;
    }
    return count;
}
"""
BODY = """
    count = 0
    depth = 0
    nxt[0] = -1
    while depth >= 0 and count < nodes:
        k = nxt[depth]
        nxt[depth] = k + 1
        at = 0 if k < 0 else offset[k] + size[k]
        if k >= depth:
            depth -= 1
            continue
        if k >= 0 and not (lower[k] < upper[depth] and lower[depth] < upper[k]):
            continue
        clash = at + size[depth] > capacity
        for j in range(depth):
            if clash:
                break
            meets = lower[j] < upper[depth] and lower[depth] < upper[j]
            clash = meets and at < offset[j] + size[j] and offset[j] < at + size[depth]
        if clash:
            continue
        count += 1
        offset[depth] = at
        if depth + 1 == n:
            continue
        depth += 1
        nxt[depth] = -1
    return count
"""
NUMBA = (
    "import numba, numpy as np\n@numba.njit(cache=True)\ndef inner(n, size, lower, upper, capacity, nodes, offset, nxt):"
    + BODY
    + """
def search(size, lower, upper, capacity, nodes, offset):
    return inner(len(size), size, lower, upper, capacity, nodes, offset, np.empty(64, np.int64))
"""
)
PYTHON = (
    "def inner(n, size, lower, upper, capacity, nodes, offset, nxt):"
    + BODY
    + """
def search(size, lower, upper, capacity, nodes, offset):
    return inner(len(size), size.tolist(), lower.tolist(), upper.tolist(), capacity, nodes, [0] * len(size), [0] * 64)
"""
)
CYTHON = """# cython: boundscheck=False, wraparound=False, language_level=3
ctypedef long long i64
def search(const i64[::1] size, const i64[::1] lower, const i64[::1] upper, i64 capacity, i64 nodes, i64[::1] offset):
    cdef long long nxt[64]
    cdef long long count, depth, k, at, j, n = size.shape[0]
    cdef bint clash, meets
""" + BODY.lstrip("\n")
CTYPES = """
import ctypes
from pathlib import Path
lib = ctypes.CDLL(str(Path(__file__).with_name("plain.so")))
lib.search.restype = ctypes.c_int64
def search(size, lower, upper, capacity, nodes, offset):
    p = [ctypes.c_void_p(a.ctypes.data) for a in (size, lower, upper, offset)]
    return lib.search(ctypes.c_int64(len(size)), *p[:3], ctypes.c_int64(capacity), ctypes.c_int64(nodes), p[3])
"""
NANOBIND = (
    C.replace("STORAGE", "static")
    + r"""
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
namespace nb = nanobind;
using A = nb::ndarray<int64_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
NB_MODULE(nano, m) {
    m.def("search", [](A size, A lower, A upper, int64_t capacity, int64_t nodes, A offset) {
        return search(size.shape(0), size.data(), lower.data(), upper.data(), capacity, nodes, offset.data());
    });
}
"""
)
FFI = (
    C.replace("STORAGE", "static")
    + r"""
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/function.h>
namespace ffi = tvm::ffi;
static int64_t *at(ffi::TensorView t) { return static_cast<int64_t *>(t.data_ptr()); }
using View = ffi::TensorView;
int64_t ffi_search(View size, View lower, View upper, int64_t capacity, int64_t nodes, View offset) {
    return search(size.size(0), at(size), at(lower), at(upper), capacity, nodes, at(offset));
}
TVM_FFI_DLL_EXPORT_TYPED_FUNC(search, ffi_search);
"""
)
FFI_PY = """
import tvm_ffi
from pathlib import Path
module = tvm_ffi.load_module(str(Path(__file__).with_name("ffi.so")))
def search(size, lower, upper, capacity, nodes, offset):
    t = [tvm_ffi.from_dlpack(a) for a in (size, lower, upper, offset)]
    return module.search(*t[:3], capacity, nodes, t[3])
"""
RUN = """
import json, sys, time
import numpy as np
rng = np.random.default_rng(1)
n = 40
lower = rng.integers(0, 30, n); upper = lower + rng.integers(1, 12, n); size = rng.integers(1, 4000, n)
a = [np.ascontiguousarray(x, np.int64) for x in (size, lower, upper)]
load = max(int(size[(lower <= t) & (t < upper)].sum()) for t in range(45))
out = np.zeros(n, np.int64)
def clock(f):
    began = time.process_time(); v = f(); return time.process_time() - began, v
name, nodes = sys.argv[1], int(sys.argv[2])
imported, module = clock(lambda: __import__(name))
first, _ = clock(lambda: module.search(*a, 6*load, 1, out))
empty, _ = clock(lambda: [module.search(*a, 6*load, 0, out) for _ in range(1000)])
many, count = clock(lambda: sum(module.search(*a, 6*load, nodes, out) for _ in range(2 if name == "python_way" else 200)))
print(json.dumps({"import": imported, "first": first, "call_us": empty * 1000, "nodes": count, "ns_node": many / count * 1e9}))
"""


WAYS = (
    ("python_way", 20_000),
    ("numba_way", 1_000_000),
    ("numba_way", 1_000_000),
    ("cython_way", 1_000_000),
    ("nano", 1_000_000),
    ("ffi_way", 1_000_000),
    ("ctypes_way", 1_000_000),
)


def main() -> None:
    import nanobind
    import tvm_ffi.libinfo as ffi

    folder = Path(tempfile.mkdtemp())
    include, suffix = sysconfig.get_path("include"), sysconfig.get_config_var("EXT_SUFFIX")
    sources = {
        "plain.c": C.replace("STORAGE", ""), "numba_way.py": NUMBA, "python_way.py": PYTHON, "cython_way.pyx": CYTHON,
        "ctypes_way.py": CTYPES, "nano.cpp": NANOBIND, "ffi.cpp": FFI, "ffi_way.py": FFI_PY, "run.py": RUN,
    }  # fmt: skip
    for name, text in sources.items():
        (folder / name).write_text(text)

    def timed(*args: object) -> float:
        began = time.monotonic()
        subprocess.run([str(a) for a in args], cwd=folder, check=True)
        return time.monotonic() - began

    shared, library = ("-O3", "-shared", "-fPIC"), Path(ffi.find_libtvm_ffi())
    nano = Path(nanobind.__file__).parent
    nano_include = (f"-I{include}", f"-I{nano}/include", f"-I{nano}/ext/robin_map/include")
    ffi_include = [f"-I{p}" for p in (ffi.find_include_path(), ffi.find_dlpack_include_path())]
    built = {"ctypes_way": timed("gcc", *shared, "-std=c11", "plain.c", "-o", "plain.so")}
    built["cython_way"] = timed(sys.executable, "-m", "cython", "cython_way.pyx")
    built["cython_way"] += timed("gcc", *shared, f"-I{include}", "cython_way.c", "-o", f"cython_way{suffix}")
    nano_sources = (nano / "src" / "nb_combined.cpp", "nano.cpp")
    built["nano"] = timed("g++", "-std=c++17", *shared, *nano_include, *nano_sources, "-o", f"nano{suffix}")
    run_path = f"-Wl,-rpath,{library.parent}"
    built["ffi_way"] = timed("g++", "-std=c++17", *shared, *ffi_include, "ffi.cpp", library, run_path, "-o", "ffi.so")
    for name, nodes in WAYS:
        command = [sys.executable, "run.py", name, str(nodes)]
        said = subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True).stdout
        print(f"{name}: built in {built.get(name, 0):.1f} s, {said.strip()}", flush=True)
    for name in ("plain.so", f"cython_way{suffix}", f"nano{suffix}", "ffi.so"):
        print(f"{name}: {(folder / name).stat().st_size} bytes")


main()
