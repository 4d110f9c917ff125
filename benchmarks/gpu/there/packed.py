"""The networks of this pack: compiled library, record for PyTorch, inputs and expected outputs, unpacked where they are run."""

from __future__ import annotations

import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent.parent
MANIFEST: dict[str, Any] = json.loads((HERE / "manifest.json").read_text())
NETWORKS: list[str] = MANIFEST["networks"]  # those that are measured
BATCHED: list[str] = MANIFEST["batched"]  # networks for several images
EMITTED: list[str] = MANIFEST["emitted"]  # folders of `stages --emit`
SMALL: str = MANIFEST["small"]  # the one that tools check, and that is rehearsed on a CPU
PROGRAMS: dict[str, list[str]] = MANIFEST["programs"]  # by name, the schedule and the precision
TOLERANCES: dict[str, float] = MANIFEST[
    "tolerances"
]  # by precision, of the largest expected value: sums in another order


@dataclass(frozen=True)
class Packed:
    """One network, unpacked into `folder`."""

    name: str
    folder: Path

    @property
    def library(self) -> Path:
        return self.folder / "network.so"

    @property
    def twin(self) -> Path:
        """The same programs for a CPU; only `SMALL` has it."""
        return self.folder / "twin.so"

    @property
    def about(self) -> dict[str, Any]:
        """Stages and estimated cost of the schedules, features of the probes."""
        return json.loads((self.folder / "about.json").read_text())

    @property
    def record(self) -> dict[str, Any]:
        """The network for PyTorch."""
        return json.loads((self.folder / "record.json").read_text())

    def arrays(self, name: str) -> list[np.ndarray]:
        """`inputs`, `expected` or `constants`, in order. Of a large batch the file has a few images, which repeat."""
        with np.load(self.folder / f"{name}.npz") as held:
            found = [held[str(k)] for k in range(len(held.files))]
        batch = 1 if name == "constants" else int(self.about["batch"])
        return [np.resize(x, (batch, *x.shape[1:])) if batch > 1 else x for x in found]


def unpack(name: str, work: Path) -> Packed:
    """The network of that name, unpacked into a folder of `work` unless it is there."""
    folder = work / name
    if not (folder / "unpacked").exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(HERE / "networks" / f"{name}.tar.xz") as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11.2, of Debian 12, has none
            archive.extractall(folder)
        (folder / "unpacked").touch()
    return Packed(name, folder)


def relative_error(values: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """The largest difference, as a share of the largest expected value; infinite where shapes differ or a value is none."""
    if [v.shape for v in values] != [e.shape for e in expected] or not all(np.isfinite(v).all() for v in values):
        return float("inf")
    return max(float(np.abs(v - e).max() / np.abs(e).max()) for v, e in zip(values, expected, strict=True))


def summary(times_ms: list[float]) -> dict[str, float | int]:
    """Median, quartiles and least of times."""
    low, middle, high = (float(x) for x in np.percentile(times_ms, [25, 50, 75]))
    values = {"median_ms": middle, "quartile_1_ms": low, "quartile_3_ms": high, "least_ms": min(times_ms)}
    return {**{k: round(v, 5) for k, v in values.items()}, "runs": len(times_ms)}
