"""Refuses operators of torch.export that cannot be computed as torch does, by the operator's name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tvm_cascade.errors import LoadError
from tvm_cascade.importers.torch.cut import argument_of, kind_of, until_before
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.messages import printable


def check_conditions(path: Path, given: Any) -> None:
    """Raise `LoadError` with the name of the first operator of a program that cannot be computed as torch does."""
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


_WRONG: tuple[Callable[[Any], str], ...] = (_random, _statistics_of_the_batch)
