"""minimalloc's CSV and its public cases; B, D and E take longer and are run by `benchmarks/arena.py`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tvm_cascade.errors import LoadError
from tvm_cascade.memory import Allocation, Buffer, Problem, validate
from tvm_cascade.memory.minimalloc_csv import read, run
from tvm_cascade.request import AllocateRequest


@pytest.mark.parametrize("case", "ACF")
def test_cases_fit_their_capacity(test_data: Path, tmp_path: Path, case: str) -> None:
    path = test_data / "cases" / "minimalloc" / f"{case}.1048576.csv"
    figures = run(path, AllocateRequest(1_048_576), tmp_path / "out.csv")
    laid = read(tmp_path / "out.csv")
    offsets = tuple(b.offset for b in laid.buffers if b.offset is not None)
    problem = read(path)
    validate(problem, Allocation(offsets, int(str(figures["peak_bytes"])), int(str(figures["bound_bytes"])), False))
    assert figures["peak_bytes"] == 1_048_576


def test_the_small_case_at_its_optimum(test_data: Path) -> None:
    figures = run(test_data / "cases" / "minimalloc" / "input.12.csv")
    assert (figures["peak_bytes"], figures["bound_bytes"], figures["optimal"]) == (12, 12, True)


def test_reads_what_it_writes(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("id,lower,upper,size\nb1,0,3,4\nb2,3,9,4\n")
    assert read(path, 9) == Problem((Buffer(0, 4, 0, 3, name="b1"), Buffer(1, 4, 3, 9, name="b2")), 9)
    run(path, None, tmp_path / "out.csv")
    assert (tmp_path / "out.csv").read_text() == "id,lower,upper,size,offset\nb1,0,3,4,0\nb2,3,9,4,0\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,lower,upper\na,0,1\n", "lacks the column size"),
        ("id,lower,upper,size\na,0,x,4\n", "line 2: lower, upper and size must be whole numbers"),
    ],
)
def test_unreadable_files_are_named(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "in.csv").write_text(text)
    with pytest.raises(LoadError, match=message):
        read(tmp_path / "in.csv")


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="No such file"):
        read(tmp_path / "none.csv")
