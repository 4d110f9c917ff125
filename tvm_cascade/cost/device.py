"""Descriptions of GPUs and CPUs for the analytic cost model: peak arithmetic, bandwidth, overheads.

Figures are the vendors' published peaks (float32 without tensor cores; tensor cores: dense float16 products with sums
in float32) and the resident-thread limits in the CUDA programming guide's table of compute capabilities. Overheads are
typical for kernels replayed from a CUDA graph; `contention` is the bandwidth lost for each further concurrent kernel
(IOS, section 7.2, gives it as the reason why large batches want fewer concurrent operators).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tvm_cascade.errors import UsageError

LEAST_ON_TENSOR_CORES = 16  # values in a sum: a shorter one leaves most of a step of tensor cores idle
PARALLEL_WORK = 400_000  # multiply-accumulates, and 8 per 4 bytes read, from which on a CPU's kernel uses all threads


@dataclass(frozen=True, slots=True)
class Device:
    """A machine that runs kernels. `units` are streaming multiprocessors or cores."""

    name: str
    kind: str  # "gpu" or "cpu"
    units: int
    macs_per_s: float  # whole device, float32 multiply-accumulates
    bytes_per_s: float  # memory bandwidth, whole device
    launch_us: float  # from the end of one kernel to the start of the next, same stream or thread
    sync_us: float  # fork and join: of a stage of several groups, on a CPU also of a kernel on all threads
    saturating_threads: int = 512  # resident threads per unit that hide arithmetic latency: 8 a core
    outputs_per_thread: int = 4  # of a register-tiled kernel
    contention: float = 0.05  # share of bandwidth lost per further concurrent kernel
    cache_bytes: int = 0  # last level; traffic that stays in it is not charged to memory on a CPU
    cache_bytes_per_s: float = 0.0
    thread_macs_per_s: float = 0.0  # a CPU's thread alone; 0: its share of the whole
    thread_bytes_per_s: float = 0.0  # likewise, from memory; 0: as much as all threads
    thread_cache_bytes_per_s: float = 0.0  # likewise, from the last level of cache
    source: str = "built-in"  # of the figures: "built-in", or "measured DATE" (`cost.processor`)
    split: float = 1.0  # of the threads' arithmetic, the share that a kernel divided among all of them reaches
    arch: str = ""  # target architecture, such as sm_90
    tensor_macs_per_s: float = 0.0  # of tensor cores: products of float16 summed up in float32; 0: none that we use
    tiled: bool = False  # whether products take what the model of `cost.tiles` tells, which was fitted there


_GPUS = (
    Device("v100", "gpu", 80, 7.85e12, 900e9, 2.5, 6.0, arch="sm_70", cache_bytes=6 << 20),
    Device("k80", "gpu", 13, 2.18e12, 240e9, 5.0, 12.0, 1536, contention=0.15, arch="sm_37", cache_bytes=1536 << 10),
    Device("a100", "gpu", 108, 9.75e12, 1555e9, 2.0, 5.0, arch="sm_80", cache_bytes=40 << 20),
    Device("h100", "gpu", 132, 33.5e12, 3350e9, 1.5, 4.0, 1024, arch="sm_90", cache_bytes=50 << 20),
    Device("h200", "gpu", 132, 33.5e12, 4800e9, 1.5, 2.0, 1024, arch="sm_90", cache_bytes=50 << 20, tiled=True),
    Device("rtx2080ti", "gpu", 68, 6.73e12, 616e9, 2.5, 6.0, arch="sm_75", cache_bytes=5632 << 10),
    Device("rtx3080", "gpu", 68, 14.9e12, 760e9, 2.5, 6.0, 1024, contention=0.08, arch="sm_86", cache_bytes=5 << 20),
    Device("gpu", "gpu", 64, 7.0e12, 600e9, 2.5, 6.0, cache_bytes=6 << 20),  # of no architecture: generic
)
_TENSOR_MACS_PER_S = {"v100": 62.5e12, "a100": 156e12, "h100": 494.7e12, "h200": 494.7e12, "rtx3080": 29.75e12}
# CPU figures are those that this project's own kernels reach (`staging.kernels.cpu_float`), with 512-bit and 256-bit vectors.
_CPUS = (
    Device("cpu2", "cpu", 2, 300e9, 20e9, 1.0, 8.0, contention=0.0, cache_bytes=16 << 20, cache_bytes_per_s=80e9),
    Device("cpu", "cpu", 4, 240e9, 25e9, 1.0, 8.0, contention=0.0, cache_bytes=16 << 20, cache_bytes_per_s=120e9),
)
DEVICES = {d.name: replace(d, tensor_macs_per_s=_TENSOR_MACS_PER_S.get(d.name, 0.0)) for d in (*_GPUS, *_CPUS)}


def find_device(name: str | None, target: str = "cuda", cores: int | None = None) -> Device:
    """Find a device by name, or the generic device for a target kind; `cores` overrides a CPU's core count.

    Raises `UsageError` for an unknown name.
    """
    if name is None:
        name = "gpu" if target.split()[0] in ("cuda", "nvptx", "rocm", "vulkan", "opencl", "metal") else "cpu"
    key = name.lower()
    if key not in DEVICES:
        raise UsageError(f"unknown device {name}: choose one of {', '.join(sorted(DEVICES))}")
    device = DEVICES[key]
    if device.kind == "cpu" and cores and cores != device.units:
        scale = cores / device.units
        return replace(device, name=f"cpu{cores}", units=cores, macs_per_s=device.macs_per_s * scale)
    return device
