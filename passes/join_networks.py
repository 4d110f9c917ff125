"""Join several modules' networks into a function, so a single schedule runs them at the same time.

Joined, the graphs have no edges between networks. Operators are interleaved by their share in the network: if a search
cuts the graph into blocks, every block holds as much from each network.
"""

# TVM's nodes get their fields at run time, where no type checker sees them.
# pyright: reportAttributeAccessIssue=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tvm
from tvm import relax
from tvm.tirx import PrimFunc

from tvm_cascade.errors import GraphError
from tvm_cascade.passes.join_modules import join_modules
from tvm_cascade.passes.relax_functions import add_function, bindings_of, substitute


def join_networks(networks: Mapping[str, tvm.IRModule]) -> tvm.IRModule:
    """Build a module with a `main` that takes the inputs of all networks and returns a tuple of all outputs, in order.

    `networks` by distinct names; parameters are called NAME/PARAMETER. Raises `GraphError` for a module with Relax
    functions besides `main`.
    """
    for name, mod in networks.items():
        others = [gv.name_hint for gv in mod.get_global_vars() if isinstance(mod[gv], relax.Function)]
        if others != ["main"]:
            raise GraphError(f"{name} is not one function main, but {', '.join(sorted(others))}: it cannot be joined")
    joined = join_modules(networks)
    kernels = {gv: joined[gv] for gv in joined.get_global_vars() if isinstance(joined[gv], PrimFunc)}
    builder = relax.BlockBuilder(tvm.IRModule(kernels))
    functions = {name: joined[name] for name in networks}
    params = {p: relax.Var(f"{name}/{p.name}", p.ty) for name, f in functions.items() for p in f.params}

    def emit() -> list[Any]:
        renamed = dict(params)
        for binding in interleaved([bindings_of(f) for f in functions.values()]):
            renamed[binding.var] = builder.emit(substitute(binding.value, renamed), name_hint=binding.var.name)
        results: list[Any] = []
        for function in functions.values():
            value = substitute(function.body.body, renamed)
            if not isinstance(value.ty, relax.TupleType):
                results.append(value)
            elif isinstance(value, relax.Tuple):
                results += list(value.fields)
            else:
                results += [builder.emit(relax.TupleGetItem(value, k)) for k in range(len(value.ty.fields))]
        return results

    add_function(builder, "main", list(params.values()), emit, attrs={"num_input": len(params)})
    return builder.finalize()


def interleaved(lists: Sequence[Sequence[Any]]) -> list[Any]:
    """Merge the items of all lists by their relative position, keeping each list's order."""
    shares = [((k + 1) / len(items), n, k) for n, items in enumerate(lists) for k in range(len(items))]
    return [lists[n][k] for _, n, k in sorted(shares)]
