"""Names of files on imported modules (`passes.origin`): what each reader attaches to what it has imported."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvm_cascade.importers.cut import FileGraph
from tvm_cascade.passes.main_rewriting import bindings_of, relax
from tvm_cascade.passes.origin import with_file_graph, with_names


def with_file_names(mod: Any, values: Mapping[str, Any], graph: FileGraph) -> Any:
    """Return `mod` with variables of `main` under the names of the tensors that they hold, and with the file's graph.

    `values` are, by computed tensor, the expressions that an importer has bound to variables or to nothing yet.
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
    """Return `mod` with the graph of its file: by computed tensor, those that its operator reads."""
    return with_file_graph(mod, {name: node.reads for node in graph.nodes for name in node.writes})
