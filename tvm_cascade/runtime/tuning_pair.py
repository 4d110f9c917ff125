"""A builder and a runner for MetaSchedule that let a bench measure candidates: a batch at a time, on all the bench's
servers.
"""

from __future__ import annotations

from itertools import count
from typing import Any

from tvm.ir.utils import derived_object

from tvm_cascade.errors import CascadeError
from tvm_cascade.runtime.bench import Bench, kernel_program
from tvm_cascade.runtime.clock import last_line
from tvm_cascade.schedules.tir import s_tir
from tvm_cascade.schedules.tuning.in_process import Measured

ms: Any = s_tir.meta_schedule


def bench_pair(bench: Bench, min_ms: float, repeats: int, problems: list[CascadeError]) -> tuple[Any, Any]:
    """Make a builder for a bench's target, and a runner for the builds.

    The runner reports the least time over `repeats` measurements of `min_ms` milliseconds or one call, whichever is
    longer. Errors not caused by a candidate, such as a farm without servers, go to `problems`: MetaSchedule would
    change their class.
    """
    programs: dict[str, Any] = {}
    return _Builder(bench, programs, min_ms, problems), _Runner(bench, programs, repeats, problems)


@derived_object
class _Builder(ms.builder.PyBuilder):
    def __init__(self, bench: Bench, programs: dict[str, Any], min_ms: float, problems: list[CascadeError]) -> None:
        super().__init__()
        self.bench, self.programs, self.min_ms, self.names = bench, programs, min_ms, count()
        self.problems = problems

    def build(self, build_inputs: Any) -> list[Any]:
        return [self._one(given) for given in build_inputs]

    def _one(self, given: Any) -> Any:
        name = f"candidate{next(self.names)}"
        try:
            self.programs[name] = kernel_program(given.mod["main"], self.bench, self.min_ms)
        except Exception as why:  # whatever TVM raises on a schedule that cannot be built
            self.problems += [why] if isinstance(why, CascadeError) else []
            return ms.builder.BuilderResult(None, last_line(why))
        return ms.builder.BuilderResult(name, None)


@derived_object
class _Runner(ms.runner.PyRunner):
    def __init__(self, bench: Bench, programs: dict[str, Any], repeats: int, problems: list[CascadeError]) -> None:
        super().__init__()
        self.bench, self.programs, self.repeats, self.problems = bench, programs, repeats, problems

    def run(self, runner_inputs: Any) -> list[Any]:
        try:
            timers = [self.bench.timer(self.programs.pop(str(given.artifact_path))) for given in runner_inputs]
            found = self.bench.times(timers, self.repeats)
        except CascadeError as error:
            self.problems.append(error)
            found = [str(error)] * len(runner_inputs)
        return [Measured(None, x) if isinstance(x, str) else Measured([min(x) / 1e3], None) for x in found]
