"""Everything that a machine with a GPU needs in one folder: `python benchmarks/gpu/pack.py --out DIR`.

The folder holds TVM's runtime and FFI, the compiled schedules of every network, inputs and expected outputs, the networks
for PyTorch, and `run.sh`: a bare machine without a network needs Python, numpy and a driver, and PyTorch to compare with.
It is made without a GPU. `--records RESULTS --database FILE` takes kernel times out of the results of a run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timezone
from importlib import metadata
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import tvm_ffi

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT))  # the networks are in tvm_cascade.testing, which an installed package lacks
LIMIT_BYTES = 60 << 20
DEVICE = "h200"  # that schedules are searched for
_FFI = "apache-tvm-ffi"
_BINDING = "nvidia-cudnn-frontend==1.14.0"


def pack_network(
    name: str, arch: str, precisions: Sequence[str], database: Path | None, stand_in: Path, out: Path
) -> str:
    """Compile one network and write its archive; the sentence that tells of it."""
    import library
    import networks

    from tvm_cascade.cost import find_device
    from tvm_cascade.cost.records import measured_kernels

    library.with_stand_in(stand_in)
    is_small = name == networks.SMALL
    own, batch = networks.batch_of(name)
    make, unit = (networks.small, "fused") if is_small else networks.NETWORKS[own]
    network = networks.read(make, batch)
    measured = measured_kernels(database, find_device(DEVICE))
    made = library.build(network.mod, unit, arch, precisions, measured, probes=not is_small and batch == 1)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        made.executable.export_library(str(work / "network.so"))
        if is_small:
            library.build_twin(network.mod, unit, precisions, measured).executable.export_library(str(work / "twin.so"))
        (work / "about.json").write_text(json.dumps(made.about() | {"batch": batch}))
        (work / "record.json").write_text(json.dumps(network.record))
        for part, arrays in (("inputs", network.inputs), ("expected", network.expected)):
            np.savez(work / f"{part}.npz", **{str(k): x for k, x in enumerate(arrays)})  # type: ignore[arg-type]
        np.savez(work / "constants.npz", **network.constants)  # type: ignore[arg-type]
        with tarfile.open(out, "w:xz") as archive:
            for path in sorted(work.iterdir()):
                archive.add(path, path.name)
    stages = ", ".join(f"{s} {len(x.stages)}" for s, x in made.schedules.items())
    return f"{name}: {out.stat().st_size >> 10} KiB; stages: {stages}; {len(made.probes)} kernels"


def pack_emitted(arch: str, precisions: Sequence[str], stand_in: Path, out: Path) -> str:
    """What `stages --emit` writes for the small network, with inputs and expected outputs beside it; a sentence."""
    import library
    import networks

    from tvm_cascade import api

    library.with_stand_in(stand_in)
    network = networks.read(networks.small)
    with tempfile.TemporaryDirectory() as folder:
        for name, target, precision in emitted_folders(precisions):
            place = Path(folder) / name
            options = {"arch": (arch,), "device": DEVICE} if target == "cuda" else {}
            api.stages(network.mod, target=target, precision=precision, emit=place / "network", **options)
            about = json.loads((place / "network" / "metadata.json").read_text())
            for part, values in (("inputs", network.inputs), ("expected", network.expected)):
                specs = about["inputs" if part == "inputs" else "outputs"]
                arrays = {spec["name"]: x for spec, x in zip(specs, values, strict=True)}
                np.savez(place / f"{part}.npz", **arrays)  # type: ignore[arg-type]
        with tarfile.open(out, "w:xz") as archive:
            archive.add(folder, "")
    return f"emitted: {out.stat().st_size >> 10} KiB"


def emitted_folders(precisions: Sequence[str]) -> list[tuple[str, str, str]]:
    """Names, targets and precisions of the folders; that for a CPU is for rehearsals."""
    return [(f"cuda_{p}", "cuda", p) for p in precisions] + [("llvm_fp32", "llvm -mcpu=x86-64-v2", "fp32")]


def pack_tvm(folder: Path) -> None:
    """The part of TVM's Python package that is loaded where TVM has no compiler."""
    told = (
        "import sys, tvm.runtime.vm; print(*(m.__file__ for n, m in sys.modules.items() if n.split('.')[0] == 'tvm'))"
    )
    environment = {**os.environ, "TVM_USE_RUNTIME_LIB": "1", "TVM_FFI_DISABLE_TORCH_C_DLPACK": "1"}
    done = subprocess.run([sys.executable, "-c", told], env=environment, check=True, capture_output=True, text=True)
    import tvm

    root = Path(tvm.__file__).parents[1]
    for file in map(Path, done.stdout.split()):
        place = folder / file.relative_to(root)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, place)


def pack_runtime(out: Path, python: str) -> None:
    """TVM's runtime, the FFI's package for this interpreter and for Python `python`, and CUDA's runtime library."""
    import library

    (out / "lib").mkdir()
    for name in ("libtvm_runtime.so", "libtvm_runtime_cuda.so"):
        shutil.copy(library.runtime_folder() / name, out / "lib")
    ffi = Path(tvm_ffi.__file__).parent
    ignore = shutil.ignore_patterns("__pycache__", "src", "cmake", "share", "libbacktrace", "testing", "*.pyi")
    shutil.copytree(ffi, out / "python" / "tvm_ffi", ignore=ignore)
    pack_tvm(out / "python")
    import typing_extensions

    shutil.copy(typing_extensions.__file__, out / "python")
    if python != f"{sys.version_info[0]}.{sys.version_info[1]}":
        _add_extension(out / "python", python)
    for place in ("/usr/local/cuda/lib64", "/usr/local/cuda/lib", *(f"{p}/nvidia/cu13/lib" for p in sys.path)):
        if (Path(place) / "libcudart.so.13").is_file():
            shutil.copy(Path(place) / "libcudart.so.13", out / "lib")
            break


def _add_extension(folder: Path, python: str) -> None:
    """Add the FFI's extension module for another Python: each minor version has a wheel of its own."""
    with tempfile.TemporaryDirectory() as wheels:
        for path in _downloaded(f"{_FFI}=={metadata.version(_FFI)}", python, Path(wheels)):
            with zipfile.ZipFile(path) as wheel:
                for name in wheel.namelist():
                    if name.startswith("tvm_ffi/core.") and name.endswith(".so"):
                        wheel.extract(name, folder)


def _downloaded(package: str, python: str, folder: Path) -> list[Path]:
    """The wheel of a package for Python `python` on x86-64."""
    platforms = [x for n in (17, 24, 27, 28) for x in ("--platform", f"manylinux_2_{n}_x86_64")]
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:", "-d", str(folder)]
    command += ["--implementation", "cp", "--python-version", python, *platforms, package]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    found = sorted(folder.glob("*.whl"))
    if done.returncode or not found:
        lines = done.stderr.strip().splitlines() or ["nothing said"]
        raise SystemExit(f"pack: no {package} for Python {python} ({lines[-1][:160]}); --python names another")
    return found


def pack_cudnn(out: Path, python: str) -> None:
    """NVIDIA's binding of cuDNN for Python `python`, the file of ours that calls it, and what a rehearsal has in its place.
    Where the binding cannot be downloaded the pack is made without."""
    from tvm_cascade.runtime import library_kernels
    from tvm_cascade.testing import cudnn_stand_in

    for module in (library_kernels, cudnn_stand_in):
        shutil.copy(str(module.__file__), out / "there")
    with tempfile.TemporaryDirectory() as wheels:
        try:
            found = _downloaded(_BINDING, python, Path(wheels))
        except SystemExit as error:
            print(f"{error}: the step cudnn needs it there", file=sys.stderr)
            return
        for name in found:
            with zipfile.ZipFile(name) as wheel:
                wheel.extractall(out / "python", [x for x in wheel.namelist() if x.startswith("cudnn/")])


def write_manifest(
    out: Path, names: Sequence[str], batched: Sequence[str], arch: str, precisions: Sequence[str], python: str
) -> None:
    """What is in the pack."""
    import library
    import networks

    from tvm_cascade import __version__

    now = datetime.now(timezone.utc)
    versions = {name: metadata.version(name) for name in ("apache-tvm", _FFI)} | {"tvm-cascade": __version__}
    data = {
        "networks": list(names),
        "batched": list(batched),
        "emitted": [name for name, _, _ in emitted_folders(precisions)],
        "small": networks.SMALL,
        "programs": library.programs_of(precisions),
        "tolerances": library.PRECISIONS,
    }
    data |= {"arch": arch, "python": python, "made": now.strftime("%Y%m%d_%H%M%S"), "versions": versions}
    (out / "manifest.json").write_text(json.dumps(data, indent=1) + "\n")


def make(
    out: Path,
    names: Sequence[str],
    batches: Sequence[int],
    arch: str,
    precisions: Sequence[str],
    python: str,
    processes: int,
    database: Path | None,
) -> None:
    """Make the folder `out`; schedules are found with the kernels of `database`. `batches`: of several images, of the networks
    that are made for them."""
    import library
    import networks

    (out / "networks").mkdir(parents=True)
    library.make_stand_in(out / "stand_in")
    batched = [networks.of_batch(name, b) for name in networks.BATCHED if name in names for b in batches]
    work = {name: out / "networks" / f"{name}.tar.xz" for name in (*names, networks.SMALL, *batched)}
    with ProcessPoolExecutor(processes, get_context("spawn")) as pool:
        jobs = [
            pool.submit(pack_network, name, arch, precisions, database, out / "stand_in", path)
            for name, path in work.items()
        ]
        jobs.append(pool.submit(pack_emitted, arch, precisions, out / "stand_in", out / "networks" / "emitted.tar.xz"))
        for job in jobs:
            print(job.result(), flush=True)
    pack_runtime(out, python)
    write_manifest(out, names, batched, arch, precisions, python)
    shutil.copytree(HERE / "there", out / "there", ignore=shutil.ignore_patterns("__pycache__", "run.sh"))
    pack_cudnn(out, python)
    shutil.copy(HERE / "there" / "run.sh", out)
    size = sum(path.stat().st_size for path in out.rglob("*") if path.is_file())
    print(f"{out}: {size / (1 << 20):.1f} MiB, for {arch}")
    if size >= LIMIT_BYTES:
        raise SystemExit(f"pack: {size} bytes, {LIMIT_BYTES} at most; leave a network out with --networks")


def keep_records(results: Path, database: Path) -> int:
    """Put the times of the step `kernels` into a database of measurements; the number of records."""
    from tvm_cascade.cost.interface import OpFeatures
    from tvm_cascade.cost.records import CONCURRENT, RecordStore, stage_key

    data: dict[str, Any] = json.loads(results.read_text())
    store = RecordStore(database, f"cuda:{data['gpu'].split(',')[0]}")
    before = len(store)
    for row in data["steps"].get("kernels", {}).get("rows", []):
        *values, shape = row["features"]
        groups = [[OpFeatures(*values, shape=_tuples(shape))]]
        if store.get(stage_key(CONCURRENT, groups)) is None:
            store.add(CONCURRENT, groups, row["samples"])
    return len(store) - before


def keep_faster(results: Path, folder: Path) -> tuple[int, int]:
    """Put what the step `cudnn` measured into tuning records, for `stages --metaschedule FOLDER`: kernels, and those that cuDNN
    is faster at."""
    from statistics import median

    from tvm_cascade.measured.choose_library import CUDNN, MARGIN
    from tvm_cascade.staging.kernels.records import KernelRecords, Record

    data: dict[str, Any] = json.loads(results.read_text())
    records, machine = KernelRecords(folder), data["gpu"].split(",")[0]
    target, faster, count = f"cuda -arch={data['pack']['arch']}", 0, 0
    for row in data["steps"].get("cudnn", {}).get("rows", []):
        if "theirs" not in row:
            continue
        ours, theirs = (round(median(row[side]), 5) for side in ("ours", "theirs"))
        library = CUDNN if theirs < ours * (1 - MARGIN) else ""
        records.add(
            Record(
                row["kernel"], row["shapes"], target, machine, 0, ours, ours, None, library=library, library_ms=theirs
            )
        )
        count, faster = count + 1, faster + bool(library)
    return count, faster


def _tuples(value: Any) -> Any:
    return tuple(_tuples(x) for x in value) if isinstance(value, list) else value


def _batches(text: str) -> list[int]:
    values = [int(x) for x in text.split(",") if x]
    if any(v < 2 for v in values) or len(set(values)) != len(values):
        raise argparse.ArgumentTypeError("give each batch once, of 2 images at least")
    return values


def _precisions(text: str) -> list[str]:
    import library

    values = text.split(",")
    if values[0] != "fp32" or len(set(values)) != len(values) or not set(values) <= set(library.PRECISIONS):
        raise argparse.ArgumentTypeError(f"give fp32, and others of {', '.join(library.PRECISIONS)} behind it")
    return values


def main() -> int:
    import networks

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="the folder to make; new, or empty")
    parser.add_argument("--networks", type=lambda s: [x for x in s.split(",") if x], default=list(networks.NETWORKS))
    parser.add_argument(
        "--batches",
        type=_batches,
        default=[],
        help=f"larger batches of {', '.join(networks.BATCHED)}, as in 8,32,128 [default: none]",
    )
    parser.add_argument("--arch", default="sm_90", help="architecture that kernels are compiled for")
    parser.add_argument(
        "--precisions",
        type=_precisions,
        default="fp32,fp16",
        help="of programs; float32 alone takes half as long to compile [%(default)s]",
    )
    parser.add_argument("--python", default="3.12", help="Python there; this machine's is added for the rehearsal")
    parser.add_argument("--processes", type=int, default=4, help="networks that are compiled at the same time")
    parser.add_argument("--records", type=Path, help="results of a run, whose kernel times go to --database")
    parser.add_argument(
        "--database",
        type=Path,
        help="database of kernels' times, for --records to fill and for schedules to be found with",
    )
    parser.add_argument(
        "--tuned",
        type=Path,
        help="with --records: folder of tuning records, for `stages --metaschedule`: where cuDNN is faster",
    )
    args = parser.parse_args()
    if args.records:
        if not args.database:
            parser.error("--records needs --database")
        print(f"{keep_records(args.records, args.database)} records")
        if args.tuned:
            print("{} kernels of cuDNN measured, {} faster than ours".format(*keep_faster(args.records, args.tuned)))
        return 0
    strangers = sorted(set(args.networks) - set(networks.NETWORKS))
    if strangers:
        parser.error(f"unknown networks {', '.join(strangers)}: choose of {', '.join(networks.NETWORKS)}")
    if not args.out or (args.out.exists() and any(args.out.iterdir())):
        parser.error("--out names a folder that is new, or empty")
    make(
        args.out.resolve(),
        args.networks,
        args.batches,
        args.arch,
        args.precisions,
        args.python,
        args.processes,
        args.database,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
