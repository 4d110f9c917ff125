"""Names from a model's file on a Relax module's variables, and the file's graph as a function attribute.

A reader binds the content of a file's tensor to a variable with the tensor's name and a mark (`marked`). Passes bind
under the names of the variables they rewrite, and Relax appends a number to a name already in use: the mark separates
the name from that number, and a file's name from a name made by Relax (`lv12`).
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
    """Return the name of the variable for the file's tensor `name`."""
    return name.replace(".", _DOT) + _MARK


def file_name(variable: str) -> str | None:
    """Return the file's name for the content of a variable with this name; None if there is none."""
    found = _MARKED.fullmatch(variable)
    return None if found is None else found[1].replace(_DOT, ".")


def plain(variable: str) -> str:
    """Return a variable's name without the mark."""
    return file_name(variable) or variable


class NamingBuilder(relax.BlockBuilder):
    """A builder that names variables after the file's tensor given by `name`, a variable's name."""

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
    """Copy `mod` with the variables in `names` under these file names in `main`."""
    main, mod = mod["main"], mod.clone()
    new = {var: type(var)(marked(name), var.ty) for var, name in names.items()}
    mod["main"] = tvm_ffi.structural_map(main, [(relax.Var, lambda var: new.get(var, var))], order="post")
    return mod


def with_file_graph(mod: Any, reads: Mapping[str, Sequence[str]]) -> Any:
    """Copy `mod` with a `main` that carries, for each computed tensor in the file, the tensors read by the
    operator.
    """
    mod = mod.clone()
    mod["main"] = mod["main"].with_attr(ORIGIN_ATTR, json.dumps({name: list(of) for name, of in reads.items()}))
    return mod


def file_graph_of(mod: Any) -> dict[str, list[str]]:
    """Return the data attached to `main` by `with_file_graph`; empty for a module that comes from no file."""
    main = next((func for gv, func in mod.functions.items() if gv.name_hint == "main"), None)
    if main is None or main.attrs is None or ORIGIN_ATTR not in main.attrs:
        return {}
    return json.loads(str(main.attrs[ORIGIN_ATTR]))
