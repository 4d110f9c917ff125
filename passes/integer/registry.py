"""Lowering functions by the Relax operator that they lower, one registry for each place in which an operator stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from tvm_cascade.passes.integer.island import Island
from tvm_cascade.passes.integer.untyped import Value

LoweringFunction = Callable[[Island], Value]  # an expression, or None from those of `FLOAT`


@dataclass(slots=True)
class Registry:
    """Lowering functions by the name of the Relax operator at an island's core."""

    functions: dict[str, LoweringFunction] = field(default_factory=dict)

    def lowers(self, *operators: str) -> Callable[[LoweringFunction], LoweringFunction]:
        """Registers a function for Relax operators, given without the `relax.` in front."""

        def register(function: LoweringFunction) -> LoweringFunction:
            for operator in operators:
                self.functions[f"relax.{operator}"] = function
            return function

        return register


ISLANDS = Registry()  # dequantize -> operator -> quantize
DIRECT = Registry()  # operators on stored integers
FLOAT = Registry()  # operators on floats whose legal form in Relax is not the reference's; None leaves one as it is
INDEX = Registry()  # operators from stored integers to indices
TESTS = Registry()  # dequantize -> comparison, to booleans
