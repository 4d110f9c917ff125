"""Names of a model's file on the variables of a Relax module, and the file's graph as an attribute of its function.

A reader binds what a tensor of the file holds to a variable of the tensor's name and a mark (`marked`). Passes bind by the
names of the variables that they rewrite, and Relax appends a number where a name is taken: the mark tells the name from
that number, and a name of the file from one that Relax made (`lv12`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from tvm_cascade.schedules.tir import tvm_ffi

ORIGIN_ATTR = "cascade_origin"
_MARK = "$"
_DOT = "\ue000"  # which Relax replaces in names
_MARKED = re.compile(r"(.+)\$\d*(?::\d+)?", re.DOTALL)  # a tuple's parts have a colon and their position


def marked(name: str) -> str:
    """Return the name of the variable that holds the tensor `name` of the file."""
    return name.replace(".", _DOT) + _MARK


def file_name(variable: str) -> str | None:
    """Return the name that the file gives to what a variable of this name holds; None if it gives none."""
    found = _MARKED.fullmatch(variable)
    return None if found is None else found[1].replace(_DOT, ".")


def plain(variable: str) -> str:
    """Return a variable's name without its mark."""
    return file_name(variable) or variable


class NamingBuilder(relax.BlockBuilder):
    """A builder whose variables have the name of the tensor of the file that `name`, a variable's name, says."""

    name = ""

    def emit(self, expr: Any, name_hint: str = "") -> Any:
        """Bind an expression to a new variable, as `relax.BlockBuilder` does."""
        return super().emit(expr, name_hint or self._hint())

    def emit_output(self, output: Any, name_hint: str = "") -> Any:
        """Bind an output to a new variable, as `relax.BlockBuilder` does."""
        return super().emit_output(output, name_hint or self._hint())

    def _hint(self) -> str:
        known = file_name(self.name)
        return "" if known is None else marked(known)


def with_names(mod: Any, names: Mapping[Any, str]) -> Any:
    """Return a copy of `mod` whose `main` has the variables of `names` under these names of the file."""
    main, mod = mod["main"], mod.clone()
    new = {var: type(var)(marked(name), var.ty) for var, name in names.items()}
    mod["main"] = tvm_ffi.structural_map(main, [(relax.Var, lambda var: new.get(var, var))], order="post")
    return mod


def with_file_graph(mod: Any, reads: Mapping[str, Sequence[str]]) -> Any:
    """Return a copy of `mod` whose `main` carries, by computed tensor of the file, the tensors that its operator reads."""
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(ORIGIN_ATTR, json.dumps({name: list(of) for name, of in reads.items()}))
    return mod


def file_graph_of(mod: Any) -> dict[str, list[str]]:
    """Return what `with_file_graph` attached to `main`; empty for a module that comes from no file."""
    main = next((func for gv, func in mod.functions.items() if gv.name_hint == "main"), None)
    if main is None or main.attrs is None or ORIGIN_ATTR not in main.attrs:
        return {}
    return json.loads(str(main.attrs[ORIGIN_ATTR]))
