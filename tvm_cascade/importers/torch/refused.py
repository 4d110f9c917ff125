"""Refuses operators of torch.export that cannot be computed as torch does, by the operator's name."""

from __future__ import annotations

from collections.abc import Callable
from operator import getitem
from pathlib import Path
from typing import Any

from tvm_cascade.errors import LoadError
from tvm_cascade.importers.torch.cut import argument_of, kind_of, until_before
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.messages import printable


def check_conditions(path: Path, given: Any) -> None:
    """Raise `LoadError` with the first operator in a program that kernels compute otherwise than torch."""
    for node in given.graph.nodes:
        if node.op == "call_function":
            reason = next(filter(None, (wrong(node) for wrong in _WRONG)), "")
            if reason:
                raise _refusal(path, given, node, reason)


def _refusal(path: Path, given: Any, node: Any, reason: str) -> LoadError:
    remedy = until_before(given, [node])
    names = remedy.operators or (kind_of(node),)
    what = f"operator {', '.join(map(printable, names))} has a form that is not supported: {reason}"
    return LoadError(path, what, remedy.text, names)


def _name(node: Any) -> str:
    return kind_of(node).partition(".")[0]


def _random(node: Any) -> str:
    tags, name = getattr(node.target, "tags", ()), _name(node)
    if torch_package().Tag.nondeterministic_seeded not in tags:
        return ""
    switches = [argument_of(node, key) for key in ("train", "training", "dropout_p", "dropout")]
    if any(s is not None for s in switches):
        return "it is random in training: export the module's eval()" if any(switches) else ""
    return "" if "attention" in name or name in ("lstm", "gru", "rnn_tanh", "rnn_relu") else "it is random"


def _statistics_of_the_batch(node: Any) -> str:
    if "batch_norm" not in _name(node) or "no_training" in _name(node):
        return ""
    return "it takes statistics of the batch: export the module's eval()" if argument_of(node, "training") else ""


def _returned_statistics(node: Any) -> str:
    if "batch_norm" not in _name(node) or getattr(node.target, "_schema", None) is None:
        return ""
    parts = [user for user in node.users if user.target is getitem and user.args[1] > 0]
    return "outside of training its statistics have no elements" if any(user.users for user in parts) else ""


def _average_of_integers(node: Any) -> str:
    kind = node.meta["val"].dtype if "avg_pool" in _name(node) and hasattr(node.meta.get("val"), "dtype") else None
    return "" if kind is None or kind.is_floating_point else "it averages integers: give it floats"


def _halves(node: Any) -> str:
    """Say that a 16-bit result is returned without any other 16-bit number in the program: kernels compute in float32."""
    torch = torch_package()
    narrow, value = (torch.float16, torch.bfloat16), node.meta.get("val")
    if getattr(value, "dtype", None) not in narrow or not any(user.op == "output" for user in node.users):
        return ""
    given = (n.meta.get("val") for n in node.graph.nodes if n.op == "placeholder")
    if any(getattr(v, "dtype", None) in narrow for v in given):
        return ""
    return f"it returns {str(value.dtype)[6:]}, and kernels compute in float32: return float32, by .float()"


def _inexact(node: Any) -> str:
    return "its results below -5 would be lost" if _name(node) == "special_log_ndtr" else ""


_WRONG: tuple[Callable[[Any], str], ...] = (
    _random,
    _statistics_of_the_batch,
    _returned_statistics,
    _average_of_integers,
    _halves,
    _inexact,
)
