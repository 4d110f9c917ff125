"""Normalize groups of channels where they lie: statistics over merged planes become statistics of channels, in NHWC.

    before: p = permute_dims(x, [0, 3, 1, 2])      after: c = mean(x, [1, 2])                       [1, 1, 1, channels]
            g = reshape(p, [1, groups, size])             m = mean(reshape(c, [1, groups, each]), 2)
            m = mean(g, 2)                                y = x - repeated(m)                       each group's, by channel
            y = permute_dims(reshape(g - m), [0, 2, 3, 1])

Group, instance and layer normalizations are written over planes of channels. The mean of a group is that of its channels'
means; its variance is the mean of `v + (c - m)^2`, with v the variance of a channel (Chan, Golub and LeVeque, Updating
formulae and a pairwise algorithm for computing sample variances, 1979). So no plane is needed, and no activation is
transposed. Reals alone; sums are taken in another order.
"""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np

from tvm_cascade.passes.layout.channels_last import BINARY, UNARY
from tvm_cascade.passes.layout.moves import TO_FIRST, TO_LAST
from tvm_cascade.passes.main_rewriting import Rewriting, Value, bindings_of, constant_of, name_of, relax, shape_of
from tvm_cascade.passes.relax_functions import substitute

_VIEWS = ("reshape", "squeeze", "flatten", "expand_dims")
_OF_CHANNELS = ("nn.group_norm", "nn.instance_norm")
_OVER_CHANNELS = ("mean", "sum", "max", "min")  # a group's is that of its channels' results


def with_plane_groups(mod: Any) -> Any:
    """Return `mod` with statistics over merged planes taken by channels in `main`, where that saves transposes; `mod` itself
    elsewhere.
    """
    if not any(_is_turned(b.value) for b in bindings_of(mod["main"])):
        return mod
    made = _Groups(mod).run().with_attrs(dict(mod.attrs or {}))
    return made if _transposes(made) < _transposes(mod) else mod


def _transposes(mod: Any) -> int:
    return sum(name_of(b.value) == "permute_dims" for b in bindings_of(mod["main"]))


def _axes(call: Value) -> list[int]:
    axes, rank = call.attrs.axes, len(shape_of(call))
    return [int(a) % rank for a in axes] if axes is not None else list(reversed(range(rank)))


def _is_turned(value: Value) -> bool:
    """Test whether a value is an image in NHWC, its channels perhaps split, turned to planes of channels."""
    if name_of(value) != "permute_dims":
        return False
    shape = shape_of(value)
    rank = len(shape)
    return (
        rank > 3 and shape[0] == 1 and str(value.ty.dtype) == "float32" and _axes(value) == [0, *range(3, rank), 1, 2]
    )


def _is_number(value: Value, number: float) -> bool:
    """Test whether a value is a constant whose elements all are `number`."""
    data = constant_of(value)
    return data is not None and bool((data == number).all())


class _Groups(Rewriting):
    def __init__(self, mod: Any) -> None:
        super().__init__(mod)
        self.images: dict[Value, Value] = {}  # old value, planes of any rank -> new value, the image in NHWC
        self.channels: dict[tuple[Value, str], Value] = {}  # by image and reduction: a number for each channel
        self.means: dict[tuple[Value, int], Value] = {}  # by image and groups: the groups' means
        self.spread: dict[tuple[Value, int], Value] = {}  # by numbers of groups: the same by channel
        self.deviations: dict[Value, tuple[Value, int]] = {}  # from a group's mean: of which image and groups
        self.squares: dict[Value, tuple[Value, int]] = {}  # of such deviations

    def _bind(self, var: Value, value: Value) -> None:
        name = name_of(value)
        if isinstance(value, relax.Var) and value in self.images:
            self.images[var] = self.images[value]
        elif _is_turned(value) and (image := self._image(self._narrow(value.args[0]))) is not None:
            self.images[var] = image
        elif name in _VIEWS and value.args[0] in self.images:
            self.images[var] = self.images[value.args[0]]
        elif (made := self._rewritten(name, value)) is not None:
            held, image = made
            (self.images if image else self.renamed)[var] = held
        else:
            self.renamed[var] = self.bb.emit(self._narrow(value))

    def _returned(self, value: Value) -> Value:
        return self._narrow(value)

    def _narrow(self, value: Value) -> Value:
        """Return a value of the old function in its own shape, with the variables in it."""
        for read in relax.analysis.free_vars(value) if not isinstance(value, relax.Var) else [value]:
            if read in self.images and read not in self.renamed:
                planes = self.bb.emit(relax.op.permute_dims(self.images[read], TO_FIRST))
                same = shape_of(planes) == shape_of(read)
                self.renamed[read] = planes if same else self.bb.emit(relax.op.reshape(planes, list(shape_of(read))))
        return substitute(value, self.renamed)

    def _rewritten(self, name: str, call: Value) -> tuple[Value, bool] | None:
        """Return what an operator on planes becomes, and whether that is an image; None for one that keeps its operands."""
        read = [a for a in getattr(call, "args", ()) if isinstance(a, relax.Var) and a in self.images]
        if not read:
            return None
        image, shape = self.images[read[0]], shape_of(read[0])
        if name == "permute_dims" and shape == self._planes(image) and _axes(call) == TO_LAST:
            return image, False
        if name in UNARY and name != "quantize":
            operands = [image, *(self._narrow(a) for a in call.args[1:])]
        elif name in BINARY:
            operands = [self._operand(a, shape_of(call), image) for a in call.args]
        else:
            return self._reduced(name, call, image, shape)
        return None if any(o is None for o in operands) else (self._elementwise(name, call, operands), True)

    def _elementwise(self, name: str, call: Value, operands: list[Value]) -> Value:
        """Emit an operator on images, and remember deviations from means and their squares."""
        first, last = operands[0], operands[-1]
        if name == "multiply" and any(_is_number(self._definition(o), 1.0) for o in operands):
            return last if _is_number(self._definition(first), 1.0) else first
        made = self.bb.emit(relax.Call(call.op, operands, call.attrs, call.ty_args))
        of = [key for key, mean in self.means.items() if key[0] is first and self.spread.get((mean, key[1])) is last]
        if name == "subtract" and of:
            self.deviations[made] = of[0]
        twice = name == "square" or (name == "multiply" and first is last)
        if first in self.deviations and (twice or (name == "power" and _is_number(self._definition(last), 2.0))):
            self.squares[made] = self.deviations[first]
        return made

    def _reduced(self, name: str, call: Value, image: Value, shape: tuple[int, ...]) -> tuple[Value, bool] | None:
        """Return what a reduction or normalization of planes becomes; None for any other operator."""
        if name in (*_OVER_CHANNELS, "variance") and call.attrs.axis is not None:
            return self._statistic(name, call, image, shape)
        if name == "nn.layer_norm":
            return self._layer_norm(call, image, shape)
        return self._group_norm(call, image, shape) if name in _OF_CHANNELS else None

    def _image(self, value: Value) -> Value | None:
        """Return the image of rank 4 whose channels a view splits; `value` itself if that is one."""
        while len(shape_of(value)) > 4 and name_of(self._definition(value)) in _VIEWS:
            value = self._definition(value).args[0]
        return value if len(shape_of(value)) == 4 else None

    def _planes(self, image: Value) -> tuple[int, ...]:
        shape = shape_of(image)
        return tuple(shape[a] for a in TO_FIRST)

    def _operand(self, value: Value, shape: tuple[int, ...], image: Value) -> Value | None:
        """Return an operand of planes of this shape as one of the image: another image, a number, or a number for each
        channel. None for any other.
        """
        known = self.images.get(value) if isinstance(value, relax.Var) else None
        if known is not None:
            return known if shape_of(value) == shape and shape_of(known) == shape_of(image) else None
        new, own = self._narrow(value), shape_of(value)
        data = constant_of(self._definition(new))
        if prod(own) == 1:
            return new if len(own) < 2 else self._reshaped(new, [1] * 4)
        own = (*[1] * (len(shape) - len(own)), *own)
        groups = self._groups(own, shape, image)
        if groups is not None:
            return self._by_channel(new, groups, image)
        if data is None:
            return None
        planes = np.broadcast_to(data, shape).reshape(self._planes(image)).transpose(TO_LAST)
        return relax.const(np.ascontiguousarray(planes), str(data.dtype))

    def _groups(self, kept: tuple[int, ...], shape: tuple[int, ...], image: Value) -> int | None:
        """Return the groups of channels for which a tensor that broadcasts to `shape` has a number each; None for any other
        tensor.
        """
        end = max((a for a, d in enumerate(kept) if d > 1), default=-1) + 1
        groups = prod(shape[:end])
        return groups if kept[:end] == shape[:end] and shape_of(image)[3] % groups == 0 else None

    def _by_channel(self, value: Value, groups: int, image: Value) -> Value:
        """Return a number for each group as one for each channel in the group."""
        channels = shape_of(image)[3]
        data = constant_of(self._definition(value))
        if data is not None:
            return relax.const(np.repeat(data.reshape(-1), channels // groups), str(data.dtype))
        each = self._reshaped(value, [1, groups, 1])
        key = (each, groups)
        if key not in self.spread:
            if 1 < groups < channels:
                each = self.bb.emit(relax.op.broadcast_to(each, [1, groups, channels // groups]))
            self.spread[key] = self._reshaped(each, [1, 1, 1, 1 if groups == 1 else channels])
        return self.spread[key]

    def _statistic(self, name: str, call: Value, image: Value, shape: tuple[int, ...]) -> tuple[Value, bool] | None:
        """Reduce planes by channels, then channels by groups; None unless each result is of a group of whole channels."""
        axes = {int(a) % len(shape) for a in call.attrs.axis}
        groups = self._groups(tuple(1 if a in axes else d for a, d in enumerate(shape)), shape, image)
        if groups is None or groups != prod(d for a, d in enumerate(shape) if a not in axes):
            return None
        if name == "mean" and self.squares.get(image, (None, 0))[1] == groups:
            name, image = "variance", self.squares[image][0]
        made = self._variance(image, groups) if name == "variance" else self._of_groups(name, image, groups)
        return self._reshaped(made, list(shape_of(call))), False

    def _of_groups(self, name: str, image: Value, groups: int) -> Value:
        """Reduce an image to one number for each group of channels, `[1, groups, 1]`; means are taken once."""
        if name == "mean" and (image, groups) in self.means:
            return self.means[image, groups]
        made = self._by_group(self._of_channels(name, image), groups)
        if groups < shape_of(image)[3]:
            made = self.bb.emit(getattr(relax.op, name)(made, [2], keepdims=True))
        if name == "mean":
            self.means[image, groups] = made
        return made

    def _of_channels(self, name: str, image: Value) -> Value:
        """Reduce an image to one number for each channel, once."""
        if (image, name) not in self.channels:
            self.channels[image, name] = self.bb.emit(getattr(relax.op, name)(image, [1, 2], keepdims=True))
        return self.channels[image, name]

    def _by_group(self, value: Value, groups: int) -> Value:
        return self._reshaped(value, [1, groups, shape_of(value)[3] // groups])

    def _variance(self, image: Value, groups: int) -> Value:
        """Return the variance of each group, `[1, groups, 1]`."""
        mean = self._of_groups("mean", image, groups)
        within = self._by_group(self._of_channels("variance", image), groups)
        if groups == shape_of(image)[3]:
            return within
        channels = self._by_group(self._of_channels("mean", image), groups)
        between = self.bb.emit(relax.op.square(self.bb.emit(relax.op.subtract(channels, mean))))
        return self.bb.emit(relax.op.mean(self.bb.emit(relax.op.add(within, between)), [2], keepdims=True))

    def _layer_norm(self, call: Value, image: Value, shape: tuple[int, ...]) -> tuple[Value, bool] | None:
        """Write out a layer normalization over groups with whole channels."""
        axes = {int(a) % len(shape) for a in call.attrs.axes}
        groups = self._groups(tuple(1 if a in axes else d for a, d in enumerate(shape)), shape, image)
        if groups is None or groups != prod(d for a, d in enumerate(shape) if a not in axes):
            return None
        return self._normalized(call, image, groups, [self._operand(a, shape, image) for a in call.args[1:]])

    def _group_norm(self, call: Value, image: Value, shape: tuple[int, ...]) -> tuple[Value, bool] | None:
        """Write out a group normalization of planes, or an instance normalization."""
        attrs, channels = call.attrs, shape_of(image)[3]
        axes = {int(a) % len(shape) for a in attrs.axes}
        if shape[1] != channels or int(attrs.channel_axis) % len(shape) != 1 or axes != {*range(2, len(shape))}:
            return None
        groups = int(attrs.num_groups) if name_of(call) == "nn.group_norm" else channels
        weights: list[Value | None] = [self._by_channel(self._narrow(a), channels, image) for a in call.args[1:]]
        return self._normalized(call, image, groups, weights)

    def _normalized(
        self, call: Value, image: Value, groups: int, weights: list[Value | None]
    ) -> tuple[Value, bool] | None:
        """Emit a normalization of groups, scaled and shifted by `weights`; None if a weight is None."""
        if any(w is None for w in weights):
            return None
        biased = relax.op.add(self._variance(image, groups), relax.const(float(call.attrs.epsilon), "float32"))
        deviation = self._by_channel(self.bb.emit(relax.op.sqrt(self.bb.emit(biased))), groups, image)
        mean = self._by_channel(self._of_groups("mean", image, groups), groups, image)
        made = self.bb.emit(relax.op.divide(self.bb.emit(relax.op.subtract(image, mean)), deviation))
        steps = (call.attrs.scale, relax.op.multiply), (call.attrs.center, relax.op.add)
        for (used, operator), weight in zip(steps, weights, strict=True):
            made = self.bb.emit(operator(made, weight)) if used else made
        return made, True

    def _reshaped(self, value: Value, shape: list[int]) -> Value:
        """Reshape `value`; fold constants and chains of views."""
        call = self._definition(value)
        data = constant_of(call)
        if data is not None:
            return relax.const(data.reshape(shape), str(data.dtype))
        if list(shape_of(value)) == shape:
            return value
        if name_of(call) == "reshape":
            return self._reshaped(call.args[0], shape)
        return self.bb.emit(relax.op.reshape(value, shape))
