"""Price for merged kernels: instructions that merging costs, against code bytes that merging saves.

A merged function reads extents and strides from parameters (`schedules.driver.merge_kernels`), so loops are not written
out, and calls pass more. A byte is worth what it is worth to the choice of variants with `--optimise size`
(`schedules.tuning.tune.WORTH`: a KiB for a twentieth of the network's instructions), or the price of coded weights
(`KernelTarget.code_price`), if that is higher: `--flash` raises it as far as the cap needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from tvm_cascade.cores import KernelTarget
from tvm_cascade.schedules.driver.merge_kernels import MergeChoice, Merged, merged_functions, without_passes
from tvm_cascade.schedules.tir import PrimFunc
from tvm_cascade.schedules.tuning.code_size import ARGUMENT, function_bytes
from tvm_cascade.schedules.tuning.instructions import Counter, Function, Library
from tvm_cascade.schedules.tuning.tune import WORTH

Key = TypeVar("Key", bound=Hashable)
_KIB = 1024


def merge_choice(target: KernelTarget) -> MergeChoice | None:
    """Return the choice of kernels that are merged for a target; None if it merges none."""
    if not target.merges_kernels:
        return None

    def choose(functions: Mapping[Key, PrimFunc], calls: Mapping[Key, int]) -> Sequence[Merged[Key]]:
        return merged_functions(functions, Prices.of(target, functions, calls).left_out)

    return choose


@dataclass(frozen=True)
class Prices(Generic[Key]):
    """What merging kernels costs and saves."""

    target: KernelTarget
    functions: Mapping[Key, PrimFunc]
    calls: Mapping[Key, int]  # of each function in an inference
    library: Library[Function]
    byte: float  # instructions of an inference that a byte of code may cost

    @classmethod
    def of(cls, target: KernelTarget, functions: Mapping[Key, PrimFunc], calls: Mapping[Key, int]) -> Prices[Key]:
        """Return the prices for a network with these kernels."""
        library = Library(Counter.of(target), Function)
        whole = sum(calls[key] * library.read(func).count([None] * len(func.params)) for key, func in functions.items())
        return cls(target, functions, calls, library, max(whole * WORTH[target.optimise] / _KIB, target.code_price))

    def left_out(self, merged: Merged[Key]) -> Key | None:
        """Return the kernel whose bytes cost most, if merging it, or all, costs more than a byte may cost; else None."""
        lost = {key: self._lost(merged, key) for key in merged.arguments}
        saved = {key: self._saved(merged, key) for key in merged.arguments}
        dearest = max(lost, key=lambda key: lost[key] / max(saved[key], 1.0))
        whole = sum(saved.values()) - function_bytes(merged.func, self.target.core)
        if lost[dearest] <= self.byte * saved[dearest] and sum(lost.values()) <= self.byte * whole:
            return None
        return dearest

    def _lost(self, merged: Merged[Key], key: Key) -> float:
        """Return the instructions that an inference takes more with a merged function in place of a kernel."""
        func, added = self.functions[key], merged.arguments[key]
        unknown = [None] * len(func.params)
        whole, before = (self.library.read(f).count(unknown) for f in (func, without_passes(func)))
        after = self.library.read(merged.func).count([*unknown, *added]) + len(added)
        return self.calls[key] * whole * (after / before - 1)

    def _saved(self, merged: Merged[Key], key: Key) -> float:
        """Return a kernel's bytes, less the bytes for arguments that calls add."""
        return function_bytes(self.functions[key], self.target.core) - ARGUMENT * len(merged.arguments[key])
