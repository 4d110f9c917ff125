"""Variable names printable by TVM's C back end.

Kernels' loops and buffers are named by a network's tensors, and TensorFlow has names such as `block/mul;x`. The back
end replaces dots only.
"""

from __future__ import annotations

import re

from tvm_cascade.schedules.tir import PrimFunc, Var, collect, substitute, tirx


def with_c_names(func: PrimFunc) -> PrimFunc:
    """Replace variable names in a function's body by C identifiers: `a/b;c_red --> a_b_c_red`; the printer makes them
    unique.
    """
    named: dict[Var, Var] = {}
    for var in collect(func.body, tirx.Var):
        plain = re.sub(r"^(?=\d)|\W", "_", var.name, flags=re.ASCII)
        if plain != var.name:
            named[var] = tirx.Var(plain, var.ty)
    return func.with_body(substitute(func.body, named)) if named else func
