"""A search that was stopped before it had found anything ends in one sentence, also where TVM stands in between."""

from __future__ import annotations

from typing import Any

import pytest
import tvm

from tvm_cascade.cli.guard import guarded
from tvm_cascade.passes import base
from tvm_cascade.search_monitor import SearchMonitor, SearchStopped, monitor


def test_it_is_caught_as_itself_behind_a_pass_of_tvm() -> None:
    assert base  # its import tells TVM of the classes of errors

    def stopped(mod: Any, _context: Any) -> Any:
        with SearchMonitor(seconds=0.0):
            monitor().check()
        return mod

    run = tvm.ir.transform.module_pass(stopped, opt_level=0, name="stopped")
    with pytest.raises(SearchStopped, match="give it more time"):
        tvm.transform.Sequential([run])(tvm.IRModule({}))


def test_a_command_ends_with_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    def search(as_json: bool = False) -> None:
        raise SearchStopped

    with pytest.raises(SystemExit) as end:
        guarded(search)(as_json=False)
    assert end.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert lines[-1] == "tvm-cascade: the search was ended before it had found anything: give it more time"
