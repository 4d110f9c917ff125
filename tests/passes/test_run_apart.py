"""A check runs in a process of its own: what it raises is told, and a crash or a hang is a sentence."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tvm_cascade import api
from tvm_cascade.errors import ValidationError
from tvm_cascade.passes import executed_plan, run_apart
from tvm_cascade.passes.executed_plan import NotExecutedError
from tvm_cascade.testing.builder import Net

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a check runs in this process")


def _write_anywhere() -> None:
    ctypes.memset(8, 0, 8)


def _break_the_heap() -> None:
    """Write over the heap's own records, then ask for memory, as TVM's handler of signals does."""
    libc = ctypes.CDLL(None)
    libc.malloc.restype = ctypes.c_void_p
    some = libc.malloc(1000)
    ctypes.memset(some - 16, 0xFF, 4096)
    libc.free(ctypes.c_void_p(some))
    os.abort()


def _loop() -> None:
    while True:
        pass


@pytest.mark.parametrize(
    ("fault", "match"),
    [
        (_write_anywhere, "it crashed with SIGSEGV on random data"),
        (_break_the_heap, "it crashed with SIG(ABRT|SEGV) on random data"),
        (lambda: os._exit(3), "it crashed with status 3 on random data"),
        (_loop, "it did not end in 1 s on random data"),
        (lambda: [].pop(), "it ended with IndexError on random data"),
    ],
)
def test_a_crash_or_a_hang_is_a_sentence(fault: Callable[[], None], match: str) -> None:
    with pytest.raises(ValidationError, match=match):
        run_apart.run_apart(fault, NotExecutedError, seconds=1)


def test_what_a_check_raises_is_told() -> None:
    names = [f"operator {k}" for k in range(20_000)]  # more than a pipe holds

    def wrong() -> None:
        raise ValidationError("y differs", names)

    def declined() -> None:
        raise NotExecutedError("its indices are random")

    with pytest.raises(ValidationError, match=r"^y differs$") as error:
        run_apart.run_apart(wrong, NotExecutedError)
    assert list(error.value.operators) == names
    with pytest.raises(NotExecutedError, match=r"^its indices are random$"):
        run_apart.run_apart(declined, NotExecutedError)
    run_apart.run_apart(lambda: None, NotExecutedError)


def test_without_processes_the_check_runs_here(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []

    def none() -> int:
        raise BlockingIOError

    monkeypatch.setattr(run_apart, "_fork", none)
    run_apart.run_apart(lambda: ran.append(os.getpid()), NotExecutedError)
    assert ran == [os.getpid()]


def test_a_program_that_crashes_is_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(executed_plan._Program, "run", lambda *_: _write_anywhere())
    net = Net("int8")
    mod = net.finish(net.softmax(net.dense(net.flatten(net.input((1, 4, 4, 3))), 5)))
    with pytest.raises(ValidationError, match=r"the plan is wrong .*\(it crashed with SIGSEGV on random data\)"):
        api.compile(mod, output=tmp_path / "out", target="host")
    assert not (tmp_path / "out").exists()
