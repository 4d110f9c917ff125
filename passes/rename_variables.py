"""Expressions with other variables in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm.relax.expr_functor import PyExprMutator, mutator


def substitute(expr: Any, variables: Mapping[Any, Any]) -> Any:
    """`expr` with every variable that is a key of `variables` replaced by its value."""

    @mutator
    class Renaming(PyExprMutator):
        def visit_var_(self, op: Any) -> Any:
            return variables.get(op, op)

        def visit_dataflow_var_(self, op: Any) -> Any:
            return variables.get(op, op)

    return Renaming().visit_expr(expr)
