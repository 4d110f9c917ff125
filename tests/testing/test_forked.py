"""Examinations in forked processes: what they say, and what becomes of those that end otherwise."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import time

from tvm_cascade.testing.forked import CRASH, HANG, PASS, Outcome, forked

# a process whose pool has two threads runs a parallel kernel before it forks, as tests do that ran before
PARALLEL = """
import numpy as np, tvm
from tvm import te
from tvm_cascade.testing.forked import PASS, Outcome, forked

a = te.placeholder((64, 64), name="a")
sch = tvm.s_tir.Schedule(te.create_prim_func([a, te.compute((64, 64), lambda i, j: a[i, j] + 1, name="b")]))
sch.parallel(sch.get_loops(sch.get_sblock("b"))[0])
kernel = tvm.compile(sch.mod, "llvm")["main"]

def run(_task):
    x, y = (tvm.runtime.tensor(np.ones((64, 64), "float32")) for _ in range(2))
    kernel(x, y)
    return Outcome(PASS, str(y.numpy().min()))

assert "T.parallel" in sch.mod.script()
print(run(0), [outcome for _, outcome in forked([0], run, seconds=4)])
"""


def test_parallel_kernels_run_in_forks_of_a_process_that_ran_one() -> None:
    env = os.environ | {"TVM_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", PARALLEL], env=env, capture_output=True, text=True, timeout=120)
    passed = Outcome(PASS, "2.0")
    assert done.stdout.strip() == f"{passed} {[passed]}", done.stderr


def examine(task: str) -> Outcome:
    if task == "raises":
        raise RuntimeError("no such file")
    if task == "dies":
        os._exit(3)
    started = time.process_time()
    while task == "hangs" and time.process_time() < started + 30:
        pass
    return Outcome(PASS, task)


def test_what_crashes_or_hangs_is_an_outcome() -> None:
    found = dict(forked(["right", "raises", "dies", "hangs"], examine, jobs=2, seconds=1))
    assert found["right"] == Outcome(PASS, "right")
    assert found["raises"].reason == "the examination ended with RuntimeError: no such file"
    assert {task: outcome.verdict for task, outcome in found.items()} == {
        "right": PASS, "raises": CRASH, "dies": CRASH, "hangs": HANG,
    }  # fmt: skip


def limited(task: str) -> Outcome:
    """Examine within limits of its own, as a task that examines its cases."""
    if task == "case":
        return Outcome(PASS, str(resource.getrlimit(resource.RLIMIT_CPU)))
    if task == "limited":
        resource.setrlimit(resource.RLIMIT_CPU, (50, 50))
    ((_, outcome),) = forked(["case"], limited, seconds=100)
    return outcome


def test_a_task_gives_its_cases_more_time_than_it_has_unless_its_limit_is_hard() -> None:
    found = dict(forked(["task", "limited"], limited, seconds=9))
    hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
    assert found == {"task": Outcome(PASS, str((100, hard))), "limited": Outcome(PASS, "(50, 50)")}


def test_what_runs_when_the_time_is_over_has_no_outcome() -> None:
    until = time.monotonic() + 2
    assert dict(forked(["right", "hangs"], examine, jobs=2, until=until)) == {"right": Outcome(PASS, "right")}
    assert not list(forked(["right"], examine, until=until - 60))
