"""ONNX's control flow without control at run time: branches are chosen or both computed, loops of known steps are one
operator (`importers.onnx.scans`) or written out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm_cascade.importers.onnx.branches import chosen
from tvm_cascade.importers.onnx.folding import fold_shapes
from tvm_cascade.importers.onnx.loops import LOOPS, MAX_UNROLLED, NotUnrolled, unrolled
from tvm_cascade.importers.onnx.scans import is_kept, kept

_KINDS = ("If", *LOOPS)


def without_control(model: Any, shapes: Mapping[str, Sequence[int]], unrolled: bool = False) -> Any:
    """Copy `model` without If and Loop; Scans stay for import as one operator (`importers.onnx.scans`), or
    go too if `unrolled`.

    `shapes` are the input shapes. An If with a computed condition stays if its branches' outputs have unknown or
    different shapes; a loop stays if its step count is computed.
    """
    while any(_is_control(n) for n in model.graph.node) and len(model.graph.node) <= MAX_UNROLLED:
        model = fold_shapes(model, shapes)
        found = (_without(model, shapes, at, unrolled) for at, n in enumerate(model.graph.node) if _is_control(n))
        made = next((m for m in found if m is not None), None)
        if made is None:
            return model
        model = made
    return model


def remaining_loop(model: Any, shapes: Mapping[str, Sequence[int]]) -> tuple[int, str] | None:
    """Return the position of the first remaining Loop or Scan, and a sentence with the reason; None without one."""
    for at, node in enumerate(model.graph.node):
        if node.op_type in LOOPS and not is_kept(node):
            try:
                unrolled(model, shapes, at)
            except NotUnrolled as why:
                return at, f"operator {node.op_type} {why} is not supported"
    return None


def _is_control(node: Any) -> bool:
    return node.op_type in _KINDS and not is_kept(node)


def _without(model: Any, shapes: Mapping[str, Sequence[int]], at: int, written_out: bool) -> Any | None:
    """Copy `model` without its node at `at`; None if impossible."""
    if model.graph.node[at].op_type == "If":
        return chosen(model, shapes, at)
    if not written_out and (made := kept(model, shapes, at)) is not None:
        return made
    try:
        return unrolled(model, shapes, at)
    except NotUnrolled:
        return None
