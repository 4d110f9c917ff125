"""Refuses operators of torch.export whose import by TVM computes something else than torch, by the operator's name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tvm_cascade.errors import LoadError
from tvm_cascade.importers.torch.cut import kind_of, until_before
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.messages import printable


def check_conditions(path: Path, given: Any, exported: Any) -> None:
    """Raise `LoadError` with the name of the first operator of `exported` that is imported wrongly; `given` is the program of
    the file, before its decomposition."""
    for node in exported.graph.nodes:
        if node.op == "call_function":
            reason = next(filter(None, (wrong(node) for wrong in _WRONG)), "")
            if reason:
                raise _refusal(path, given, node, reason)


def check_types(path: Path, given: Any, exported: Any, converted: Mapping[Any, Any]) -> None:
    """Raise `LoadError` with the name of the first operator whose result was imported (`converted`) as one of another type or
    shape than torch's. Several results are checked where they are taken apart."""
    for node in exported.graph.nodes:
        if node.op == "call_function" and node.users and node in converted:
            want, got = _types_of_result(node.meta.get("val"), converted[node])
            if want != got:
                raise _refusal(path, given, node, f"is imported as {got}, torch computes {want}")


def _refusal(path: Path, given: Any, node: Any, reason: str) -> LoadError:
    remedy = until_before(given, [node])
    names = remedy.operators or (kind_of(node),)
    what = f"operator {', '.join(map(printable, names))} has a form that is not supported: {reason}"
    return LoadError(path, what, remedy.text, names)


def _types_of_result(want: Any, got: Any) -> tuple[str, str]:
    """Type and shape of a node's tensor, as torch has it and as it was imported; two empty texts of what is no tensor."""
    kind = getattr(got, "ty", got)
    if not isinstance(want, torch_package().Tensor) or not hasattr(kind, "dtype") or kind.dtype is None:
        return "", ""
    shape = getattr(kind.shape, "values", None)
    sizes = None if shape is None else [int(d) if hasattr(d, "value") else None for d in shape]
    known = [d if isinstance(d, int) else None for d in want.shape]
    is_same = sizes is None or (
        len(sizes) == len(known) and all(a is None or b is None or a == b for a, b in zip(sizes, known, strict=True))
    )
    types = str(want.dtype).removeprefix("torch."), str(kind.dtype)
    return types if is_same else (f"{types[0]}{known}", f"{types[1]}{sizes}")


def _name(node: Any) -> str:
    return kind_of(node).partition(".")[0]


def _argument(node: Any, name: str) -> Any:
    """An argument of a node by the name that its operator's schema gives it; None for an operator without."""
    schema = getattr(node.target, "_schema", None)
    for place, argument in enumerate(schema.arguments if schema is not None else ()):
        if argument.name == name:
            if place < len(node.args) and not argument.kwarg_only:
                return node.args[place]
            return node.kwargs.get(name, argument.default_value)
    return None


def _types(node: Any) -> list[Any]:
    """The types of the tensors that a node takes."""
    values = (argument.meta.get("val") for argument in node.all_input_nodes)
    return [value.dtype for value in values if isinstance(value, torch_package().Tensor)]


def _random(node: Any) -> str:
    tags, name = getattr(node.target, "tags", ()), _name(node)
    if torch_package().Tag.nondeterministic_seeded not in tags:
        return ""
    switches = [_argument(node, key) for key in ("train", "training", "dropout_p", "dropout")]
    if any(s is not None for s in switches):
        return "it is random in training: export the module's eval()" if any(switches) else ""
    return "" if "attention" in name or name in ("lstm", "gru", "rnn_tanh", "rnn_relu") else "it is random"


def _statistics_of_the_batch(node: Any) -> str:
    if "batch_norm" not in _name(node) or "no_training" in _name(node):
        return ""
    return "it takes statistics of the batch: export the module's eval()" if _argument(node, "training") else ""


def _windows(node: Any) -> str:
    name = _name(node)
    if (
        name == "pad"
        and _argument(node, "mode") == "circular"
        and any(p < 0 for p in node.args[1] if isinstance(p, int))
    ):
        return "circular by negative amounts"
    if name == "avg_pool3d" and _argument(node, "divisor_override") is not None:
        return "divisor_override"
    if name.startswith("max_pool") and name.endswith("_with_indices") and any(u.args[1:] == (1,) for u in node.users):
        return "its indices"
    if name.startswith("_upsample_") and name.endswith("_aa"):
        return "antialias"
    return "sampling of a grid" if name.startswith("grid_sampler") else ""


def _sums(node: Any) -> str:
    if _name(node) in ("add", "sub", "rsub") and _argument(node, "alpha") not in (None, 1):
        return "alpha, which is not 1: multiply before"
    return ""


_ARITHMETIC = (
    "add",
    "sub",
    "rsub",
    "mul",
    "div",
    "maximum",
    "minimum",
    "pow",
    "clamp",
    "remainder",
    "fmod",
    "floor_divide",
)
_OF_NUMBERS = ("sign", "sgn", "abs", "neg", "square", "relu", "pad", "constant_pad_nd", "amax", "amin", "max", "min")
_OF_FLOATS = ("isinf", "isnan", "isfinite")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "isclose")


def _mixed_types(node: Any) -> str:
    name, types = _name(node), _types(node)
    if name in _OF_FLOATS:
        return "" if all(t.is_floating_point for t in types) else "of integers, which are all finite"
    if name not in (*_ARITHMETIC, *_COMPARISONS, *_OF_NUMBERS) or not types:
        return ""
    if any(isinstance(a, float) for a in node.args) and not any(t.is_floating_point for t in types):
        return "integers with a float: convert them before"
    return "of booleans: convert them before" if {*types} == {torch_package().bool} else ""


def _truth_of_numbers(node: Any) -> str:
    is_one = _name(node) in ("any", "all") and _types(node) != [torch_package().bool]
    return "of numbers: compare them with 0 before" if is_one else ""


_WRONG: tuple[Callable[[Any], str], ...] = (
    *(_random, _statistics_of_the_batch, _windows, _sums, _mixed_types, _truth_of_numbers),
)
