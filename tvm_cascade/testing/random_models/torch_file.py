"""A `RandomModel` as a `.pt2` file of torch.export, and as torch computes it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.testing.random_models.model import RandomModel, Step, drawn, weights


def export(network: Any, inputs: list[np.ndarray]) -> Any:
    """Return the program of torch.export."""
    torch = torch_package()
    example = tuple(torch.from_numpy(a.copy()) for a in inputs)
    return torch.export.export(network.eval(), example, strict=False)


def module(model: RandomModel) -> Any:
    """Return the network as a module of torch."""
    return _module(torch_package(), model)


def _module(torch: Any, model: RandomModel) -> Any:
    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.names: dict[Any, str] = {}
            self.given = {k: self.parameters_of(step) for k, step in enumerate(model.steps)}

        def held(self, key: Any, data: np.ndarray) -> str:
            if key not in self.names:
                self.names[key] = f"w{len(self.names)}"
                self.register_buffer(self.names[key], torch.from_numpy(np.array(data, order="C")))
            return self.names[key]

        def parameters_of(self, step: Step) -> list[str]:
            a = step.attrs
            if "weights" not in a:
                return []
            if step.kind in _DRAWN:
                shapes = _DRAWN[step.kind](a, model.operands[step.inputs[0]].shape)
                return [
                    self.held((a["weights"], shape, k), drawn(a["weights"] + k, shape)[k % 2])
                    for k, shape in enumerate(shapes)
                ]
            if step.kind == "binary":
                data = np.random.default_rng(a["weights"]).uniform(0.5, 1.5, a["constant"])
                return [self.held(("constant", a["weights"], a["constant"]), data.astype("float32"))]
            shape, axis, channels = _weights_shape(model, step)
            made = weights(a["weights"], shape, axis, channels, a["terms"])
            names = [self.held((a["weights"], shape), made.real(axis))]
            return (
                [*names, self.held((a["weights"], shape, "bias"), made.bias.astype("float32"))] if a["bias"] else names
            )

        def forward(self, *xs: Any) -> Any:
            values = dict(zip(model.inputs, xs, strict=True))
            for k, step in enumerate(model.steps):
                held = [getattr(self, name) for name in self.given[k]]
                made = getattr(_Operators, step.kind)(torch, step, [values[t] for t in step.inputs], held)
                values.update(zip(step.outputs, made if isinstance(made, (tuple, list)) else [made], strict=True))
            return tuple(values[t] for t in model.outputs)

    return Network()


_Shapes = Callable[[Mapping[str, Any], tuple[int, ...]], list[tuple[int, ...]]]
_DRAWN: Mapping[str, _Shapes] = {  # factors and summands by turns
    "layer_norm": lambda a, shape: [shape[a["axis"] :]] * (2 if a["bias"] else 1),
    "group_norm": lambda _, shape: [(shape[1],)] * 2,
    "prelu": lambda _, shape: [(shape[1],)],
    "lookup": lambda a, _: [(a["rows"], a["depth"])],
    "recurrent": lambda a, shape: _gates(4 if a["op"] == "lstm" else 3, a["units"], shape[2]),
}


def _gates(count: int, units: int, depth: int) -> list[tuple[int, ...]]:
    """Return the shapes of an RNN's parameters, in torch's order."""
    rows = count * units
    return [(rows, depth), (rows, units), (rows,), (rows,)]


def _weights_shape(model: RandomModel, step: Step) -> tuple[tuple[int, ...], int, int]:
    a, shape = step.attrs, model.operands[step.inputs[0]].shape
    if step.kind == "dense":
        return (a["units"], shape[-1]), 0, a["units"]
    if step.kind == "deconv":
        return (shape[1], a["channels"], *a["kernel"]), 1, a["channels"]
    return (a["channels"], shape[1] // a["groups"], *a["kernel"]), 0, a["channels"]


class _Operators:
    """Every kind of operator as torch has it."""

    @staticmethod
    def _activated(torch: Any, x: Any, activation: str | None) -> Any:
        return {None: lambda v: v, "relu": torch.relu, "relu6": torch.nn.functional.relu6}[activation](x)

    @staticmethod
    def conv(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        a = step.attrs
        how = (a["stride"], tuple(a["pads"][: len(a["kernel"])]), a["dilation"], a["groups"])
        convolve = {1: torch.nn.functional.conv1d, 2: torch.nn.functional.conv2d}[len(a["kernel"])]
        made = convolve(*xs, held[0], held[1] if len(held) > 1 else None, *how)
        return _Operators._activated(torch, made, a["activation"])

    depthwise = conv

    @staticmethod
    def deconv(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        bias = held[1] if len(held) > 1 else None
        return torch.nn.functional.conv_transpose2d(*xs, held[0], bias, step.attrs["stride"])

    @staticmethod
    def dense(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        return _Operators._activated(torch, torch.nn.functional.linear(*xs, *held), step.attrs["activation"])

    @staticmethod
    def matmul(torch: Any, _step: Step, xs: Any, _held: Any) -> Any:
        return torch.matmul(*xs)

    @staticmethod
    def max_pool(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        a, rank = step.attrs, len(step.attrs["kernel"])
        pool = getattr(torch.nn.functional, f"max_pool{rank}d")
        return pool(*xs, a["kernel"], a["stride"], tuple(a["pads"][:rank]))

    @staticmethod
    def avg_pool(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        a, rank = step.attrs, len(step.attrs["kernel"])
        how = (a["kernel"], a["stride"], tuple(a["pads"][:rank]), False, a["count_include_pad"])
        return getattr(torch.nn.functional, f"avg_pool{rank}d")(*xs, *how)

    @staticmethod
    def unary(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        functional = torch.nn.functional
        made = {
            "relu": torch.relu, "relu6": functional.relu6, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
            "leaky_relu": lambda v: functional.leaky_relu(v, 0.125), "hard_swish": functional.hardswish, "abs": torch.abs,
            "neg": torch.neg, "square": torch.square, "root": lambda v: torch.sqrt(torch.abs(v)),
            "exp_tanh": lambda v: torch.exp(torch.tanh(v)), "sin": torch.sin, "gelu": functional.gelu, "elu": functional.elu,
            "softplus": functional.softplus, "erf": torch.erf, "logs": lambda v: torch.log(torch.abs(v) + 1),
        }  # fmt: skip
        return made[step.attrs["op"]](*xs)

    @staticmethod
    def binary(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        a, given = step.attrs, [*xs, *held]
        given = given[::-1] if a.get("left") else given
        names = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "maximum", "minimum": "minimum"}
        return _Operators._activated(torch, getattr(torch, names[a["op"]])(*given), a["activation"])

    @staticmethod
    def layer_norm(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        return torch.nn.functional.layer_norm(*xs, held[0].shape, *held)

    @staticmethod
    def group_norm(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        return torch.nn.functional.group_norm(*xs, step.attrs["groups"], *held)

    @staticmethod
    def prelu(torch: Any, _step: Step, xs: Any, held: Any) -> Any:
        return torch.nn.functional.prelu(*xs, *held)

    @staticmethod
    def cumsum(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.cumsum(*xs, step.attrs["axis"])

    @staticmethod
    def top_k(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.topk(*xs, step.attrs["k"], step.attrs["axis"])[0]

    @staticmethod
    def recurrent(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        states = xs[0].new_zeros((1, xs[0].shape[1], step.attrs["units"]))
        how = (held, True, 1, 0.0, False, False, False)
        if step.attrs["op"] == "lstm":
            return torch.lstm(xs[0], (states, states), *how)[0]
        return torch.gru(xs[0], states, *how)[0]

    @staticmethod
    def lookup(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        return held[0][torch.argmax(*xs, dim=step.attrs["axis"])]

    @staticmethod
    def softmax(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.softmax(*xs, step.attrs["axis"])

    @staticmethod
    def reduce(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        a, op = step.attrs, {"mean": "mean", "sum": "sum", "max": "amax", "min": "amin"}[step.attrs["op"]]
        return getattr(torch, op)(*xs, dim=list(a["axes"]), keepdim=a["keepdims"])

    @staticmethod
    def choose(torch: Any, _step: Step, xs: Any, _held: Any) -> Any:
        return torch.where(xs[0] < xs[1], xs[1], xs[0])

    @staticmethod
    def argmax(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.argmax(*xs, dim=step.attrs["axis"])

    @staticmethod
    def concat(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.cat(xs, step.attrs["axis"])

    @staticmethod
    def stack(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.stack(xs, step.attrs["axis"])

    @staticmethod
    def split(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.split(*xs, list(step.attrs["sizes"]), step.attrs["axis"])

    @staticmethod
    def slice(_torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        a = step.attrs
        return xs[0][tuple(slice(*bounds) for bounds in zip(a["begin"], a["end"], a["step"], strict=True))]

    @staticmethod
    def gather(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        indices = torch.tensor(step.attrs["indices"])
        axis = (slice(None),) * step.attrs["axis"]
        return xs[0][(*axis, indices)]

    @staticmethod
    def pad(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        widths = step.attrs["widths"]
        flat = [w for pair in reversed(widths) for w in pair]
        if step.attrs["mode"] == "edge":
            return torch.nn.functional.pad(*xs, flat[: 2 * len(widths) - 4], mode="replicate")
        return torch.nn.functional.pad(*xs, flat)

    @staticmethod
    def resize(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        a = step.attrs
        if a["mode"] == "nearest":
            return torch.nn.functional.interpolate(*xs, size=a["size"], mode="nearest")
        align = a["corners"] == "align_corners"
        return torch.nn.functional.interpolate(*xs, size=a["size"], mode="bilinear", align_corners=align)

    @staticmethod
    def transpose(_torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return xs[0].permute(step.attrs["axes"])

    @staticmethod
    def reshape(_torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return xs[0].reshape(step.attrs["shape"])

    @staticmethod
    def expand(_torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return xs[0].expand(step.attrs["shape"])

    @staticmethod
    def tile(_torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return xs[0].repeat(step.attrs["times"])

    @staticmethod
    def reverse(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.flip(*xs, list(step.attrs["axes"]))

    @staticmethod
    def depth_to_space(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.nn.functional.pixel_shuffle(*xs, step.attrs["block"])

    @staticmethod
    def space_to_depth(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        return torch.nn.functional.pixel_unshuffle(*xs, step.attrs["block"])
