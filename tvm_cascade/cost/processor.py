"""The description of this machine's CPU that `doctor --measure` keeps, and the device it makes.

`measured.measure_processor` measures; this module keeps one JSON file per model of CPU in the user's cache folder, and
makes a `Device` for a number of threads. Without a description, or for another target, the built-in devices stay.
"""

from __future__ import annotations

import json
import os
import platform
import re
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from tvm_cascade.cache import cache_folder
from tvm_cascade.cost.device import Device, find_device
from tvm_cascade.errors import UsageError
from tvm_cascade.publish import whole_file
from tvm_cascade.records import checked

FORMAT = 1  # of the file: raised where a field changes its meaning
MEASURED = "measured"  # in `source`, by `doctor --measure`
BUILT_IN = "built-in"
_FOLDER = "processors"
_RATES = ("macs_per_s", "bytes_per_s", "cache_bytes_per_s")


@dataclass(frozen=True, slots=True)
class Processor:
    """Rates and overheads of a CPU, as this project's kernels reach them. `thread_` is one thread with all others idle."""

    model: str  # as the operating system names it
    architecture: str  # as LLVM names it
    threads: int  # that were measured together: one per core that this process may use
    vector_bits: int
    thread_macs_per_s: float  # float32 multiply-accumulates at peak: kernels reach `operators.table.efficiency` of it
    macs_per_s: float  # of all threads, each with a kernel of its own
    split: float  # share of these that a kernel divided among all threads reaches
    thread_bytes_per_s: float  # of memory
    bytes_per_s: float
    cache_bytes: int  # of the last level, as far as traffic gains from it; 0: nothing gains
    thread_cache_bytes_per_s: float
    cache_bytes_per_s: float
    launch_us: float  # from the end of a kernel to the start of the next
    sync_us: float  # fork and join of a parallel region
    measured: str  # date, such as 2026-11-30

    def __post_init__(self) -> None:
        """Raise `ValueError` for a figure that no CPU has."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, (int, float)) and not (0 <= value < float("inf")):
                raise ValueError(f"{field.name}: {value}")
        positive = (self.threads, self.macs_per_s, self.thread_macs_per_s, self.bytes_per_s, self.thread_bytes_per_s)
        if min(positive) <= 0 or not 0 < self.split <= 1 or (self.cache_bytes and not self.thread_cache_bytes_per_s):
            raise ValueError("a rate is 0")
        for rate in _RATES:
            one, every = getattr(self, f"thread_{rate}"), getattr(self, rate)
            if not one <= every <= one * self.threads * (1 + 1e-9):
                raise ValueError(f"{rate}: {every} of all threads, {one} of one")

    def device(self, threads: int | None = None) -> Device:
        """Describe the CPU with some of the threads; None: all that were measured.

        Between one thread and all, rates grow in a straight line. Beyond, arithmetic grows with the threads, traffic no more.
        """
        units = threads or self.threads
        return Device(
            f"cpu:{self.architecture}:{units}",
            "cpu",
            units,
            self._rate("macs_per_s", units) * max(1.0, units / self.threads),
            self._rate("bytes_per_s", units),
            self.launch_us,
            self.sync_us,
            contention=0.0,
            cache_bytes=self.cache_bytes,
            cache_bytes_per_s=self._rate("cache_bytes_per_s", units),
            thread_macs_per_s=self.thread_macs_per_s,
            thread_bytes_per_s=self.thread_bytes_per_s,
            thread_cache_bytes_per_s=self.thread_cache_bytes_per_s,
            split=self.split if units > 1 else 1.0,
            source=f"{MEASURED} {self.measured}",
        )

    def _rate(self, name: str, units: int) -> float:
        one, every = getattr(self, f"thread_{name}"), getattr(self, name)
        share = (min(units, self.threads) - 1) / (self.threads - 1) if self.threads > 1 else 1.0
        return one + (every - one) * share

    def to_text(self) -> str:
        """Format the description in a few lines."""
        cache = "no cache that traffic gains from"
        if self.cache_bytes:
            rates = f"{self.thread_cache_bytes_per_s / 1e9:.1f} GB/s, together {self.cache_bytes_per_s / 1e9:.1f}"
            cache = f"to {self.cache_bytes >> 20} MiB from the cache {rates}"
        return (
            f"{self.model} ({self.architecture}), {self.threads} threads, vectors of {self.vector_bits} bits, "
            f"{MEASURED} {self.measured}\n"
            f"arithmetic: one thread {self.thread_macs_per_s / 1e9:.0f} GMAC/s, together {self.macs_per_s / 1e9:.0f}; "
            f"a divided kernel reaches {100 * self.split:.0f} % of it\n"
            f"traffic: from memory one thread {self.thread_bytes_per_s / 1e9:.1f} GB/s, together "
            f"{self.bytes_per_s / 1e9:.1f}; {cache}\n"
            f"overheads: {self.launch_us:.2f} us a kernel, {self.sync_us:.2f} us a fork and join"
        )


def this_model() -> str:
    """Return the name of this machine's CPU, as the operating system has it."""
    with suppress(OSError):
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
        if found:
            return found[1].strip()
    return platform.processor() or platform.machine()


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def description_file(model: str) -> Path | None:
    """Return the file for a model of CPU; None without a cache folder."""
    folder = cache_folder()
    return folder / _FOLDER / f"{re.sub('[^a-z0-9]+', '-', model.lower()).strip('-')}.json" if folder else None


def keep(processor: Processor) -> Path:
    """Write the description, which replaces an earlier one. Raises `UsageError` if it cannot be kept."""
    path = description_file(processor.model)
    if path is None:
        raise UsageError("there is no folder to keep the description in: set TVM_CASCADE_CACHE_DIR")
    with whole_file(path) as partial:
        partial.write_text(json.dumps({"format": FORMAT, **asdict(processor)}, indent=2) + "\n", encoding="utf-8")
    return path


def kept(model: str | None = None) -> Processor | None:
    """Read the description of this machine's CPU, or of another model; None if absent, damaged or of another format."""
    path = description_file(model or this_model())
    if path is None:
        return None
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        if read.pop("format") != FORMAT:
            return None
        processor = checked(Processor(**read))
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None
    return processor if processor.model == (model or this_model()) else None


def device_for(name: str | None, target: str = "cuda", threads: int | None = None) -> Device:
    """Find the device that prices a target: by name; else, for this machine's CPU, as measured; else the generic one.

    `target`: only `llvm` without options is this machine's. `threads` overrides a CPU's count. Raises `UsageError` for
    an unknown name.
    """
    if name is None and target.strip() == "llvm":
        processor = kept()
        if processor is not None:
            return processor.device(threads)
    return find_device(name, target, threads)
