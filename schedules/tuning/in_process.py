"""A builder and a runner for MetaSchedule that work in this process: no worker processes, no files, no linker.

MetaSchedule's own ones start processes, which needs `cloudpickle`, `psutil` and a C compiler. Row forms have static
shapes and no data-dependent indices, so a candidate can neither hang nor fault.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import tvm
from tvm.ir.utils import derived_object

from tvm_cascade.schedules.tir import s_tir

ms: Any = s_tir.meta_schedule


def local_pair(repeat_ms: int, repeats: int = 3) -> tuple[Any, Any]:
    """Make a builder and a runner for the builds.

    The runner reports the least time of `repeats` measurements, each `repeat_ms` milliseconds or one call, whichever is
    longer.
    """
    built: dict[str, Any] = {}
    return _Builder(built), _Runner(built, repeat_ms, repeats)


def _tensor(shape: tuple[int, ...], dtype: str, random: np.random.Generator) -> Any:
    """Make a tensor of random numbers: floats normally distributed, integers from 0 to 3."""
    floats = np.dtype(dtype).kind == "f"
    value = random.standard_normal(shape) if floats else random.integers(0, 4, shape)
    return tvm.runtime.tensor(value.astype(dtype))


@derived_object
class _Builder(ms.builder.PyBuilder):
    def __init__(self, built: dict[str, Any]) -> None:
        super().__init__()
        self.built, self.names = built, count()

    def build(self, build_inputs: Any) -> list[Any]:
        return [self._one(given) for given in build_inputs]

    def _one(self, given: Any) -> Any:
        name = f"candidate{next(self.names)}"
        try:
            self.built[name] = tvm.compile(given.mod, target=given.target).mod
        except Exception as why:  # whatever TVM raises on a schedule that cannot be built
            return ms.builder.BuilderResult(None, str(why)[-500:] or type(why).__name__)
        return ms.builder.BuilderResult(name, None)


@derived_object
class _Runner(ms.runner.PyRunner):
    def __init__(self, built: dict[str, Any], repeat_ms: int, repeats: int) -> None:
        super().__init__()
        self.built, self.repeat_ms, self.repeats = built, repeat_ms, repeats
        self.random = np.random.default_rng(0)

    def run(self, runner_inputs: Any) -> list[Any]:
        return [Measured(*self._one(given)) for given in runner_inputs]

    def _one(self, given: Any) -> tuple[list[float] | None, str | None]:
        module = self.built.pop(str(given.artifact_path))
        try:
            args = [
                _tensor(tuple(int(d) for d in info.shape), str(info.dtype), self.random) for info in given.args_info
            ]
            timer = module.time_evaluator(
                "main", tvm.cpu(), number=1, repeat=self.repeats, min_repeat_ms=self.repeat_ms
            )
            return [float(min(timer(*args).results))], None
        except Exception as why:
            return None, str(why)[-500:] or type(why).__name__


@derived_object
class Measured(ms.runner.PyRunnerFuture):
    """A candidate's time, in seconds, or the reason for not running."""

    def __init__(self, seconds: list[float] | None, error: str | None) -> None:
        super().__init__()
        self.seconds, self.error = seconds, error

    def done(self) -> bool:
        return True

    def result(self) -> Any:
        return ms.runner.RunnerResult(self.seconds, self.error)
