"""A session copies inputs to where the last run's were: no result changes afterwards, whatever comes next."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
import tvm
from tvm import relax

from tvm_cascade.runtime import Session

DTYPES = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8", "bool")


def session(shape: tuple[int | str, ...], dtype: str) -> Session:
    """Build a program that returns an input and its values in reverse order of the first axis."""
    builder, names = relax.BlockBuilder(), {}
    sizes = [names.setdefault(n, tvm.tirx.Var(n, "int64")) if isinstance(n, str) else n for n in shape]
    x = relax.Var("x", relax.TensorType(sizes, dtype))
    with builder.function("main", [x]):
        builder.emit_func_output(relax.Tuple([x, builder.emit(relax.op.flip(x, 0))]))
    return Session(tvm.compile(builder.get(), "llvm"))


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_stay_when_the_next_run_has_other_inputs(dtype: str) -> None:
    run, rng = session((3, 4), dtype).run, np.random.default_rng(0)
    given = [rng.integers(0, 2 if dtype == "bool" else 100, (3, 4)).astype(dtype) for _ in range(3)]
    made = [run(x) for x in given]
    for x, (same, flipped) in zip(given, made, strict=True):
        assert same.dtype == x.dtype
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(flipped, x[::-1])


def test_views_that_numpy_only_reads_are_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """NumPy 2.0 makes every view by DLPack read-only."""
    view = np.from_dlpack

    def read_only(tensor: Any) -> np.ndarray:
        made = view(tensor)
        made.flags.writeable = False
        return made

    monkeypatch.setattr(np, "from_dlpack", read_only)
    run = session((3, 4), "float32").run
    for seed in range(3):
        x = np.random.default_rng(seed).standard_normal((3, 4)).astype("float32")
        same, flipped = run(x)
        np.testing.assert_array_equal(same, x)
        np.testing.assert_array_equal(flipped, x[::-1])
        assert same.flags.writeable


def test_shapes_may_change_from_run_to_run() -> None:
    run = session(("n", 2), "float32").run
    for rows in (3, 1, 5, 5):
        x = np.random.default_rng(rows).standard_normal((2, rows)).astype("float32").T  # columns are contiguous
        np.testing.assert_array_equal(run(x)[1], x[::-1])


def test_types_that_numpy_does_not_know() -> None:
    x = np.arange(6).reshape(3, 2).astype(ml_dtypes.bfloat16)
    run = session((3, 2), "bfloat16").run
    first, second = run(x), run(x[::-1])
    for made, wanted in ((first[0], x), (first[1], x[::-1]), (second[1], x)):
        np.testing.assert_array_equal(np.asarray(made, "float32"), wanted.astype("float32"))
