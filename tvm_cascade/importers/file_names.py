"""Attach the file's names to an imported module (`passes.origin`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_cascade.importers.cut import FileGraph
from tvm_cascade.passes.main_rewriting import bindings_of, relax
from tvm_cascade.passes.origin import with_file_graph, with_names


def with_file_names(mod: Any, values: Mapping[str, Any], graph: FileGraph) -> Any:
    """Return `mod` with the file's graph, and with `main`'s variables named after the tensors.

    `values` maps a computed tensor to its expression, bound to a variable or not.
    """
    computed: list[tuple[str, Any]] = [(name, values.get(name)) for name in graph.computed]
    known = {value.__chandle__(): name for name, value in reversed(computed) if isinstance(value, relax.Expr)}
    named: dict[Any, str] = {}
    for binding in bindings_of(mod["main"]):
        name = known.get(binding.value.__chandle__()) or known.get(binding.var.__chandle__())
        if name is not None:
            named[binding.var] = name
    return with_graph(with_names(mod, named), graph)


def with_graph(mod: Any, graph: FileGraph) -> Any:
    """Return `mod` with its file's graph: for every computed tensor the tensors read by its operator."""
    return with_file_graph(mod, {name: node.reads for node in graph.nodes for name in node.writes})
