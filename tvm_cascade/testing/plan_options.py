"""Planning options of an emitter that can do less than ours, for tests and benchmarks that ask what an ability is worth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tvm_cascade.cascading import PlanOptions

ROWS_ALONE = PlanOptions(pixels=False, accumulators=False, stripes=False, in_place=False, row_addresses=False)


def rows_alone(**options: Any) -> PlanOptions:
    """Options of kernels that make whole rows and nothing else, but for what `options` say."""
    return replace(ROWS_ALONE, **options)
