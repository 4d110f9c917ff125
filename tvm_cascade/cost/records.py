"""Database of measured stage latencies, which later searches reuse and the learned cost model is trained on.

An SQLite file (or memory). Records are found by device and by the stage's structure, so networks with equal stages
share them. Features are stored with the samples, so training needs no network.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from math import sqrt
from operator import attrgetter
from pathlib import Path
from statistics import median

from tvm_cascade.cost.device import Device
from tvm_cascade.cost.interface import Groups, OpFeatures
from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.plain_files import readable

CONCURRENT, MERGE = "c", "m"
_values = attrgetter(*(field.name for field in fields(OpFeatures)))  # as `astuple`, which copies every shape


@dataclass(frozen=True, slots=True)
class Record:
    """A measured stage: samples in milliseconds, in measuring order."""

    key: str
    strategy: str  # CONCURRENT or MERGE (then `groups` is one group: the merged operators)
    groups: tuple[tuple[OpFeatures, ...], ...]
    samples: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.samples)

    @property
    def interval(self) -> tuple[float, float]:
        """Return a 95 % confidence interval for the median, from order statistics: valid for any noise distribution."""
        return median_interval(self.samples)


def median_interval(samples: Sequence[float]) -> tuple[float, float]:
    """Return the order statistics that contain the median with 95 % confidence (normal approximation to the binomial)."""
    ordered = sorted(samples)
    n = len(ordered)
    reach = 1.96 * sqrt(n) / 2
    low, high = int(n / 2 - reach), int(n / 2 + reach)
    return ordered[max(0, low)], ordered[min(n - 1, high)]


def stage_key(strategy: str, groups: Groups) -> str:
    """Hash a stage's structure: the order of groups does not matter, the order within a group does."""
    parts = sorted(repr([_values(op) for op in group]) for group in groups)
    return hashlib.sha256(repr((strategy, parts)).encode()).hexdigest()[:32]


class RecordStore:
    """A device's records in a database file; a path of None keeps them in memory.

    Raises `LoadError` for a file without such a database.
    """

    def __init__(self, path: str | Path | None, device: str) -> None:
        self.device = device
        try:
            self._base = sqlite3.connect(":memory:" if path is None else str(readable(path)))
            self._base.execute(
                "CREATE TABLE IF NOT EXISTS stages (device TEXT, key TEXT, strategy TEXT, features TEXT, samples TEXT,"
                " PRIMARY KEY (device, key))"
            )
        except (sqlite3.Error, OSError) as error:
            why = error.strerror if isinstance(error, OSError) else error
            raise LoadError(path, f"is no database of measurements: {why}") from None
        self._held: dict[str, Record] = {r.key: r for r in self._read()}

    def get(self, key: str) -> Record | None:
        """Return the record with this key, if measured on this device."""
        return self._held.get(key)

    def add(self, strategy: str, groups: Groups, samples: Sequence[float]) -> Record:
        """Append samples to a stage's record and write the record."""
        key = stage_key(strategy, groups)
        known = self._held.get(key)
        every = (*(known.samples if known else ()), *samples)
        record = Record(key, strategy, tuple(tuple(g) for g in groups), tuple(every))
        self._held[key] = record
        text = json.dumps([[_values(op) for op in group] for group in record.groups])
        try:
            self._base.execute(
                "INSERT OR REPLACE INTO stages VALUES (?, ?, ?, ?, ?)",
                (self.device, key, strategy, text, json.dumps(every)),
            )
            self._base.commit()
        except sqlite3.Error as error:
            raise UsageError(f"cannot write the database of measurements: {error}") from None
        return record

    def devices(self) -> list[str]:
        """List the names of all devices with records in the file."""
        return [name for (name,) in self._base.execute("SELECT DISTINCT device FROM stages ORDER BY device")]

    def __len__(self) -> int:
        return len(self._held)

    def __iter__(self) -> Iterator[Record]:
        return iter(tuple(self._held.values()))

    def _read(self) -> Iterator[Record]:
        rows = self._base.execute(
            "SELECT key, strategy, features, samples FROM stages WHERE device = ? ORDER BY key", (self.device,)
        )
        for key, strategy, text, samples in rows:
            groups = tuple(tuple(OpFeatures(*f[:-1], shape=tuple(f[-1])) for f in group) for group in json.loads(text))
            yield Record(key, strategy, groups, tuple(json.loads(samples)))


def measured_kernels(path: str | Path | None, device: Device) -> dict[OpFeatures, float]:
    """Read the milliseconds, launch included, of kernels measured alone on the device from a database.

    Return {} without a path. Raises `LoadError` for a file that is no database, `UsageError` for a database without
    such a kernel.
    """
    if path is None:
        return {}
    if not Path(path).exists():
        raise LoadError(path, "is no database of measurements: there is no such file")
    found: dict[OpFeatures, float] = {}
    others: list[str] = []
    for name in RecordStore(path, "").devices():
        if device.name not in name.lower():
            others.append(name)
            continue
        alone = (r for r in RecordStore(path, name) if r.strategy == CONCURRENT and [len(g) for g in r.groups] == [1])
        found |= {r.groups[0][0]: r.median for r in alone}
    if not found:
        known = f"it has those of {', '.join(others)}" if others else "it is empty"
        raise UsageError(f"{path} has no kernel that was measured on {device.name}: {known}")
    return found
