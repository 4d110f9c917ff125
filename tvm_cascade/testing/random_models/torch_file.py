"""A `RandomModel` as a `.pt2` file of torch.export, and as torch computes it."""

from __future__ import annotations

import io
from typing import Any

import numpy as np

from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.testing.random_models.model import RandomModel, Step, weights


def exported(model: RandomModel) -> Any:
    """Return the program of torch.export."""
    torch = torch_package()
    example = tuple(torch.zeros(model.operands[t].shape) for t in model.inputs)
    return torch.export.export(_module(torch, model).eval(), example, strict=False)


def torch_bytes(model: RandomModel) -> bytes:
    """Return the file's bytes."""
    torch, file = torch_package(), io.BytesIO()
    torch.export.save(exported(model), file)
    return file.getvalue()


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
            if step.kind == "binary":
                data = np.random.default_rng(a["weights"]).uniform(0.5, 1.5, a["constant"])
                return [self.held(("constant", a["weights"], a["constant"]), data.astype("float32"))]
            shape, axis, channels = _weights_shape(model, step)
            made = weights(a["weights"], shape, channels, a["terms"])
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
        how = (a["stride"], tuple(a["pads"][:2]), a["dilation"], a["groups"])
        made = torch.nn.functional.conv2d(*xs, held[0], held[1] if len(held) > 1 else None, *how)
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
        a = step.attrs
        return torch.nn.functional.max_pool2d(*xs, a["kernel"], a["stride"], tuple(a["pads"][:2]))

    @staticmethod
    def avg_pool(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        a = step.attrs
        how = (a["kernel"], a["stride"], tuple(a["pads"][:2]), False, a["count_include_pad"])
        return torch.nn.functional.avg_pool2d(*xs, *how)

    @staticmethod
    def unary(torch: Any, step: Step, xs: Any, _held: Any) -> Any:
        functional = torch.nn.functional
        made = {
            "relu": torch.relu, "relu6": functional.relu6, "sigmoid": torch.sigmoid, "tanh": torch.tanh,
            "leaky_relu": lambda v: functional.leaky_relu(v, 0.125), "hard_swish": functional.hardswish, "abs": torch.abs,
            "neg": torch.neg, "square": torch.square, "root": lambda v: torch.sqrt(torch.abs(v)),
            "exp_tanh": lambda v: torch.exp(torch.tanh(v)), "sin": torch.sin,
        }  # fmt: skip
        return made[step.attrs["op"]](*xs)

    @staticmethod
    def binary(torch: Any, step: Step, xs: Any, held: Any) -> Any:
        a, given = step.attrs, [*xs, *held]
        given = given[::-1] if a.get("left") else given
        names = {"add": "add", "sub": "sub", "mul": "mul", "div": "div", "maximum": "maximum", "minimum": "minimum"}
        return _Operators._activated(torch, getattr(torch, names[a["op"]])(*given), a["activation"])

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
        flat = [w for pair in reversed(step.attrs["widths"]) for w in pair]
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
