"""What importers ask of Relax expressions: the operator's name, the data of a constant, the static shape."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, TypeAlias

import numpy as np
from tvm import ir as _ir
from tvm import relax as _relax

ir: Any = _ir  # nodes of TVM get their fields at run time
relax: Any = _relax
Value: TypeAlias = Any


def name_of(value: Value) -> str:
    """The operator that a call is of, without `relax.`; empty for anything else."""
    return str(getattr(value.op, "name", "")).removeprefix("relax.") if isinstance(value, relax.Call) else ""


def data_of(value: Value) -> np.ndarray | None:
    """The data of a constant; None for anything else."""
    return value.value.numpy() if isinstance(value, ir.GenericConst) else None


def shape_of(value: Value) -> tuple[int, ...]:
    """The static shape of a tensor; empty for what is no tensor of a known rank."""
    dims = getattr(getattr(value.ty, "shape", None), "values", None)
    return tuple(int(d) for d in dims) if dims is not None else ()


def scales_of(dequantize: Value) -> int:
    """How many scales a dequantize has; 0 where they are not constant."""
    scale = data_of(dequantize.args[1])
    return 0 if scale is None else int(scale.size)


@contextmanager
def blocks_closed(builders: Sequence[Any]) -> Iterator[None]:
    """Where an importer fails, closes the blocks that its builders have open: TVM warns of them on standard error."""
    try:
        yield
    except BaseException:
        for builder in builders:
            with suppress(Exception):  # says that none is open
                while True:
                    builder._end_block()
        raise
