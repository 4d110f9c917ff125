"""No operator of an embedded network is a cliff: cycles of each behind a convolution on a Cortex-M4, and bytes.

Limits are by kind of cost. `benchmarks/operator_costs.py` prices all cases, and counts the dearest in the emulator.
"""

from __future__ import annotations

import pytest

from tvm_cascade.testing.cost_cases import ALONE, Case, cases, priced

TARGET = "cortex-m4"
# cycles by element, or by product if the kind has products; the arena relative to that of the convolution alone, or to
# the outputs, which quantized networks exceed where operators along rows or columns stay float
LIMITS = {
    "moves": (15.0, 1.9),
    "adds": (52.0, 1.1),
    "tables": (16.0, 1.1),
    "roots": (75.0, 1.1),
    "functions": (230.0, 1.1),
    "exponentials and logarithms": (480.0, 1.1),
    "softmax": (310.0, 7.2),
    "norms": (205.0, 7.2),
    "pools": (105.0, 1.3),
    "cubic": (120.0, 1.2),
    "means": (60.0, 7.2),
    "products": (10.5, 1.9),
    "depthwise": (10.5, 1.3),
}
EVERY = 6  # case of a kind that is priced here; of int8 products, all


def quick() -> list[Case]:
    """Return the cases to price: of each form and kind some, and all products of int8."""
    chosen, seen = [], dict[tuple[str, str], int]()
    for case in cases():
        key = case.form, case.kind
        seen[key] = seen.get(key, -1) + 1
        if case.name != ALONE and (seen[key] % EVERY == 0 or key == ("int8", "products")):
            chosen.append(case)
    return chosen


@pytest.mark.parametrize("case", quick(), ids=lambda case: case.label)
def test_no_operator_is_a_cliff(case: Case) -> None:
    pytest.importorskip("ai_edge_litert")
    (price,) = priced([case], TARGET)
    most, bytes_most = LIMITS[case.kind]
    taken = price.by_product if case.kind in ("products", "depthwise") else price.by_element
    assert taken < most
    assert price.arena < bytes_most
