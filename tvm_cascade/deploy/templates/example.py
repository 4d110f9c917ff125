"""Runs the network of this folder. Needs the packages apache-tvm and numpy, and for a GPU its driver and CUDA's runtime.

Of TVM only the runtime is loaded: its compiler is never imported.

    python example.py [--inputs in.npz] [--outputs out.npz] [--check want.npz] [--repeat N] [--threads N]

    import example
    network = example.load(threads=2)
    results = network.run({"name of an input": array})     # {"name of an output": array}

A network with states goes on from the run before; `network.sequence()` has states of its own.

The names, shapes and types of inputs and outputs are in metadata.json.
"""

import argparse
import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import json
import mmap
import os
import sys
import threading
import time
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent


def load(threads=1):
    """Load the network, ready to run. `threads`: processor threads for a run; a schedule for a GPU uses none."""
    return Network(threads)


class Network:
    """May be run from several threads at once: every overlapping run has a separate session and arena."""

    def __init__(self, threads=1):
        if threads < 1:
            raise ValueError(f"threads is {threads}: give at least 1")
        self.metadata = json.loads((HERE / "metadata.json").read_text())
        self._threads = threads
        os.environ["TVM_NUM_THREADS"] = str(max(threads, int(os.environ.get("TVM_NUM_THREADS") or 1)))
        self._device = _device(_runtime(), self.metadata)
        if self.metadata.get("cudnn_kernels"):
            _register_cudnn()
        self._weights = _weights(self.metadata.get("weights"))
        several = self.metadata.get("batches") or self.metadata.get("lengths")
        self._programs = several or [{"batch": None, "library": self.metadata["library"]}]
        self._libraries = [_runtime().load_module(str(HERE / program["library"])) for program in self._programs]
        self._configure = _runtime().get_global_func("runtime.config_threadpool")
        self._free = [[] for _ in self._programs]  # sessions that nobody runs, of each program
        self._lock = threading.Lock()
        self._free[-1].append(self._session(-1))
        self._own = Sequence(self) if self.metadata.get("states") else None

    def run(self, arrays):
        """Run on inputs by name, and return outputs by name. Raises ValueError for inputs that are not the network's.

        A network for several batches takes any number of rows up to its largest batch. The program for the smallest batch
        that holds them runs, with rows of zeros behind them; no row depends on another one. A network for several lengths
        takes inputs of each of these. A network with states goes on from the run before.
        """
        if self._own is not None:
            return self._own.run(arrays)
        if self.metadata.get("lengths"):
            program = self._fitting(arrays)
            return self._run(program, _checked(arrays, self._programs[program]["inputs"]))
        rows, program, specs = self._chosen(arrays)
        given = _checked(arrays, specs)
        if rows is None:
            return self._run(program, given)
        batch, names = self._programs[program]["batch"], [spec["name"] for spec in specs]
        padded = self.metadata["rows"]
        given = [_padded(a, batch) if name in padded else a for name, a in zip(names, given, strict=True)]
        return {name: array[:rows] for name, array in self._run(program, given).items()}

    def _fitting(self, arrays):
        """Return the number of the program for the shapes of these inputs."""
        shapes = {name: list(np.shape(array)) for name, array in arrays.items()}
        for number, program in enumerate(self._programs):
            if all(shapes.get(spec["name"], spec["shape"]) == spec["shape"] for spec in program["inputs"]):
                return number
        lengths = ", ".join(str(program["length"]) for program in self._programs)
        raise ValueError(
            f"the inputs have the shapes {shapes}: this network has programs for the lengths {lengths} alone"
        )

    def sequence(self):
        """Return a sequence of runs with states of its own. Sequences may run in several threads at once."""
        return Sequence(self)

    def _chosen(self, arrays):
        """Return the rows given, the number of the program that runs them, and the inputs' descriptions for them."""
        names, specs = self.metadata.get("rows"), self.metadata["inputs"]
        if not names:
            return None, 0, specs
        shapes = [np.shape(arrays[name]) for name in names if name in arrays]
        counts, most = sorted({shape[0] if shape else 0 for shape in shapes}), self._programs[-1]["batch"]
        if len(counts) != 1 or not 1 <= counts[0] <= most:
            raise ValueError(f"rows of the inputs: {counts}; give {', '.join(names)} as many each, from 1 to {most}")
        program = next(k for k, one in enumerate(self._programs) if one["batch"] >= counts[0])
        sized = [
            {**spec, "shape": [counts[0], *spec["shape"][1:]]} if spec["name"] in names else spec for spec in specs
        ]
        return counts[0], program, sized

    def _run(self, program, given):
        return self._step(program, given, ())[0]

    def _step(self, program, given, states):
        with self.session(program) as session:
            if getattr(_pool, "threads", None) != self._threads:  # TVM has a pool for each thread that calls it
                self._configure(1, self._threads)
                _pool.threads = self._threads
            return session.step(given, states)

    @contextlib.contextmanager
    def session(self, program=-1):
        """Hold a session nobody else runs meanwhile; `program`: by number, the last is for the largest batch."""
        with self._lock:
            held = self._free[program].pop() if self._free[program] else None
        held = held or self._session(program)
        try:
            yield held
        finally:
            with self._lock:
                self._free[program].append(held)

    def _session(self, program):
        places = self._programs[program].get("weights")
        weights = self._weights if places is None else [self._weights[k] for k in places]
        return Session(self._libraries[program], self._device, self.metadata, weights)


class Sequence:
    """Runs of a network with states, each of which goes on from the one before; for a single thread at a time."""

    def __init__(self, network):
        self._network = network
        self.reset()

    def reset(self):
        """Begin anew from the states before the first run."""
        self._states = [_uploaded(_first(spec), self._network._device) for spec in self._network.metadata["states"]]

    def run(self, arrays):
        """Run on inputs by name, and return outputs by name."""
        given = _checked(arrays, self._network.metadata["inputs"])
        results, self._states = self._network._step(-1, given, self._states)
        return results


class Session:
    """One virtual machine with an arena (on a GPU: streams and graph, too), for a single thread at a time."""

    def __init__(self, library, device, metadata, weights=()):
        self._device, self._outputs, self._weights = device, metadata["outputs"], weights
        self._machine = library["vm_load_executable"]()
        devices = [device] if device.dlpack_device_type() == _CPU else [device, _runtime().device("cpu", 0)]
        numbers = [(one.dlpack_device_type(), one.index, _POOLED) for one in devices]
        self._machine["vm_initialization"](*(number for three in numbers for number in three))
        self._main = self._machine["main"]
        self._places = []  # of inputs, which have the same shapes and types in every run

    def step(self, arrays, states):
        """Run on input arrays in the network's order and on states; return outputs by name, and the next states."""
        results = self._main(*self._given(arrays, bool(states)), *states, *self._weights)
        results = [results] if hasattr(results, "shape") else list(results)
        own = zip(self._outputs, results[: len(results) - len(states)], strict=True)
        return {spec["name"]: _downloaded(result, self._device) for spec, result in own}, results[
            len(results) - len(states) :
        ]

    def _given(self, arrays, kept):
        """Return tensors of inputs: where those of the last run were, unless states may be kept there."""
        if kept or not self._places:
            tensors = [_uploaded(array, self._device) for array in arrays]
            if kept:
                return tensors
            self._places = [(tensor, _view(tensor, self._device)) for tensor in tensors]
        for (tensor, view), array in zip(self._places, arrays, strict=True):
            if view is None or not view.flags.writeable:  # NumPy 2.0 only reads what others hold
                _copy(array, tensor)
            else:
                np.copyto(view, array)
        return [tensor for tensor, _ in self._places]


_CPU, _POOLED = 1, 2  # DLPack's number of processors; TVM's of its allocator that keeps memory for the next run
_pool = threading.local()


@functools.cache
def _runtime():
    """Load TVM's runtime library and return the module `tvm_ffi`, through which its functions are called."""
    os.environ.setdefault("TVM_FFI_DISABLE_TORCH_C_DLPACK", "1")  # torch would be imported wherever it is installed
    import tvm_ffi

    _load_library(tvm_ffi, "tvm_runtime", "RTLD_GLOBAL")
    return tvm_ffi


def _load_library(tvm_ffi, name, mode):
    """Load a library of TVM's package, which is not imported: that would load the compiler."""
    found = importlib.util.find_spec("tvm")
    folders = [Path(place) / "lib" for place in (found.submodule_search_locations or ())] if found else []
    tvm_ffi.libinfo.load_lib_ctypes("apache-tvm", name, mode, folders)


def _uploaded(array, device):
    tvm_ffi = _runtime()
    allocate = tvm_ffi.get_global_func("runtime.TVMTensorAllocWithScope")
    tensor = allocate(tvm_ffi.Shape(array.shape), tvm_ffi.dtype(str(array.dtype)), device, None)
    _copy(array, tensor)
    return tensor


def _copy(array, tensor):
    copy = _runtime().get_global_func("runtime.TVMTensorCopyFromBytes")
    copy(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)


def _view(tensor, device):
    """Return a tensor's memory as an array, through which copies take a tenth of the time; None on a GPU."""
    return np.from_dlpack(tensor) if device.dlpack_device_type() == _CPU else None


def _downloaded(tensor, device):
    if (view := _view(tensor, device)) is not None:
        return view.copy()
    array = np.empty(tuple(tensor.shape), str(tensor.dtype))
    copy = _runtime().get_global_func("runtime.TVMTensorCopyToBytes")
    copy(tensor, ctypes.c_void_p(array.ctypes.data), array.nbytes)
    return array


def _weights(described):
    """Map the weights from the file: a page is read when it is used, and shared by all processes that use it."""
    if described is None:
        return ()
    path = HERE / described["file"]
    with open(path, "rb") as file:
        if os.fstat(file.fileno()).st_size != described["bytes"]:
            raise ValueError(f"{path} does not have the {described['bytes']} bytes of this network's weights")
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)  # nothing is written: no page is copied
    if hashlib.sha256(mapped).hexdigest() != described["sha256"]:
        raise ValueError(f"{path} holds the weights of another network: emit the folder again")
    views = []
    for spec in described["tensors"]:
        dtype, count = np.dtype(spec["dtype"]), int(np.prod(spec["shape"], dtype=np.int64))
        array = np.frombuffer(mapped, dtype, count, spec["offset"]).reshape(spec["shape"])
        views.append(_runtime().from_dlpack(array))
    return tuple(views)


def _device(tvm_ffi, metadata):
    if metadata["target"] != "cuda":
        return tvm_ffi.device("cpu", 0)
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is None:
        with contextlib.suppress(OSError, RuntimeError):  # the runtime does not load it by itself
            _load_library(tvm_ffi, "tvm_runtime_cuda", "RTLD_LOCAL")
    if tvm_ffi.get_global_func("device_api.cuda", allow_missing=True) is None:
        raise RuntimeError(
            "TVM's CUDA runtime does not load: libcuda.so.1 (the driver) and libcudart.so.13 must be found"
        )
    device = tvm_ffi.device("cuda", metadata["device"])
    exists = 0  # the number of this attribute
    if not tvm_ffi.get_global_func("runtime.GetDeviceAttr")(device.dlpack_device_type(), device.index, exists):
        raise RuntimeError(f"there is no CUDA device {metadata['device']}: see nvidia-smi and CUDA_VISIBLE_DEVICES")
    return device


def _register_cudnn():
    sys.path.insert(0, str(HERE))
    try:
        import library_kernels  # pyright: ignore[reportMissingImports]

        library_kernels.register()
    except (ImportError, OSError) as error:
        text = (
            f"some kernels of this network are cuDNN's ({error}): pip install nvidia-cudnn-frontend nvidia-cudnn-cu13"
        )
        raise RuntimeError(text) from None
    finally:
        sys.path.remove(str(HERE))


def _first(spec):
    """Return a state before the first run."""
    if spec["initial"] is None:
        return np.zeros(spec["shape"], spec["dtype"])
    return np.frombuffer(bytes.fromhex(spec["initial"]), spec["dtype"]).reshape(spec["shape"])


def _checked(arrays, specs):
    names = [spec["name"] for spec in specs]
    if sorted(arrays) != sorted(names):
        raise ValueError(f"the inputs are named {sorted(arrays)}, those of the network {sorted(names)}")
    checked = []
    for spec in specs:
        array = _integers(np.asarray(arrays[spec["name"]], order="C"), np.dtype(spec["dtype"]))
        if list(array.shape) != spec["shape"] or str(array.dtype) != spec["dtype"]:
            wanted = f"{spec['dtype']}{spec['shape']}"
            raise ValueError(
                f"{spec['name']} is {array.dtype}{list(array.shape)}, the network takes {wanted}: convert it"
            )
        checked.append(array)
    return checked


def _padded(array, batch):
    """Append rows of zeros up to a batch."""
    if len(array) == batch:
        return array
    return np.concatenate([array, np.zeros((batch - len(array), *array.shape[1:]), array.dtype)])


def _integers(array, dtype):
    """Convert integers to another width if the values fit: token ids that are int64 in the network's file are int32
    here.
    """
    if array.dtype == dtype or array.dtype.kind not in "iu" or dtype.kind not in "iu":
        return array
    converted = array.astype(dtype)
    return converted if np.array_equal(converted, array) else array


def random_inputs(metadata, seed=0):
    """Draw inputs by name: floats are normal, integers 0 or 1, which is a valid index of any table."""
    rng = np.random.default_rng(seed)
    made = {}
    for spec in metadata["inputs"]:
        dtype = np.dtype(spec["dtype"])
        floats = dtype.kind == "f"
        drawn = rng.standard_normal(spec["shape"]) if floats else rng.integers(0, 2, spec["shape"])
        made[spec["name"]] = np.asarray(drawn, dtype)
    return made


def difference(results, wanted):
    """Return the largest difference in any output, as a share of this output's largest finite value.

    Equal infinities and NaNs do not differ; others, and a NaN or infinity against a number, differ infinitely.
    """
    if len(results) != len(wanted):
        raise ValueError(f"the network has {len(results)} outputs, {len(wanted)} are given to compare with")
    worst = 0.0
    for (name, made), want in zip(results.items(), wanted, strict=True):
        if made.shape != want.shape:
            raise ValueError(f"{name} is {list(made.shape)}, the array to compare with {list(want.shape)}")
        made, want = made.astype("float64").ravel(), np.asarray(want).astype("float64").ravel()
        same = (made == want) | (np.isnan(made) & np.isnan(want))
        if not np.all(np.isfinite(made[~same]) & np.isfinite(want[~same])):
            return float("inf")
        largest = np.max(np.abs(want[np.isfinite(want)]), initial=0.0)
        gap = np.max(np.abs(made[~same] - want[~same]), initial=0.0)
        worst = max(worst, float(gap / largest) if largest > 0 else float("inf") * gap if gap > 0 else 0.0)
    return worst


def milliseconds(network, arrays, repeat, warm=3):
    """Return the times of `repeat` runs, inputs and outputs copied, after `warm` runs that are not counted."""
    times = []
    for k in range(warm + repeat):
        begin = time.perf_counter()
        network.run(arrays)
        times += [1000 * (time.perf_counter() - begin)] * (k >= warm)
    return times


def main():
    parser = argparse.ArgumentParser(description="Run the network of this folder once.")
    parser.add_argument("--inputs", metavar="IN.npz", help="One array for each input, under its name. [random ones]")
    parser.add_argument("--outputs", metavar="OUT.npz", help="Written: one array for each output.")
    parser.add_argument("--check", metavar="WANT.npz", help="Compare with these outputs, in order; exit 1 beyond 1e-2.")
    parser.add_argument("--repeat", type=int, default=20, metavar="N", help="Runs that are timed; 0: none. [20]")
    parser.add_argument("--threads", type=int, default=1, help="Threads of the processor that the run uses.")
    args = parser.parse_args()
    try:
        network = load(args.threads)
        given = dict(np.load(args.inputs)) if args.inputs else random_inputs(network.metadata)
        results = network.run(given)
        if args.outputs:
            with open(args.outputs, "wb") as file:
                np.savez(file, **results)  # pyright: ignore[reportArgumentType]
        if args.repeat > 0:
            low, middle, high = np.percentile(milliseconds(network, given, args.repeat), [25, 50, 75])
            print(f"{middle:.3f} ms, median of {args.repeat} runs (quartiles {low:.3f} and {high:.3f})")
        if args.check:
            gap = difference(results, list(dict(np.load(args.check)).values()))
            print(f"largest difference {gap:.2g} of the largest value")
            if not gap <= 1e-2:
                parser.exit(1, "example.py: the outputs differ\n")
    except ImportError as error:
        parser.exit(2, f"example.py: {error}: pip install apache-tvm numpy\n")
    except (OSError, ValueError, RuntimeError) as error:
        parser.exit(2, f"example.py: {error}\n")


if __name__ == "__main__":
    main()
