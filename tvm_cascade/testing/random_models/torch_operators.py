"""Random single modules and functions of torch with any of their arguments, each with inputs of its own; see `operators`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tvm_cascade.importers.torch.package import torch_package

Shape = tuple[int, ...]
Generator = Callable[["TorchBuilder"], None]


class TorchBuilder:
    """Collects calls, each with its input tensors; `rng` is that of the case that is added."""

    def __init__(self) -> None:
        self.torch: Any = torch_package()
        self.nn: Any = self.torch.nn
        self.rng = np.random.default_rng(0)
        self.calls: list[tuple[Any, int]] = []  # and numbers of inputs
        self.given: list[np.ndarray] = []

    def module(self) -> Any:
        """Return one module that makes all calls; its outputs are one flat tuple."""
        calls, nn = self.calls, self.nn

        class Network(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                for k, (call, _) in enumerate(calls):
                    setattr(self, f"m{k}", call)

            def forward(self, *xs: Any) -> Any:
                made, first = [], 0
                for k, (_, count) in enumerate(calls):
                    result = getattr(self, f"m{k}")(*xs[first : first + count])
                    made += _flat(result)
                    first += count
                return tuple(made)

        return Network().eval()

    # What cases are made of.

    def int(self, low: int, high: int) -> int:
        """Return an integer of `[low, high]`."""
        return int(self.rng.integers(low, high + 1))

    def pick(self, *choices: Any) -> Any:
        """Return one of the choices."""
        return choices[int(self.rng.integers(len(choices)))]

    def chance(self, probability: float = 0.5) -> bool:
        """Return True now and then."""
        return bool(self.rng.random() < probability)

    def shape(self, least: int = 1, most: int = 4, extent: int = 6) -> Shape:
        """Return a shape of any rank between two."""
        return tuple(self.int(1, extent) for _ in range(self.int(least, most)))

    def axis(self, rank: int) -> int:
        """Return an axis, from either end."""
        return self.int(-rank, rank - 1)

    def axes(self, rank: int) -> list[int]:
        """Return different axes."""
        return [int(a) for a in self.rng.choice(rank, self.int(1, rank), replace=False)]

    def values(self, shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
        """Return small values of a type."""
        if dtype == "bool":
            return self.rng.random(shape) < 0.5
        if dtype.startswith("int"):
            return self.rng.integers(-9, 10, shape).astype(dtype)
        return self.rng.standard_normal(shape).astype(dtype)

    def tensor(self, shape: Sequence[int], dtype: str = "float32") -> Any:
        """Return a constant tensor."""
        return self.torch.from_numpy(self.values(shape, dtype))

    def add(self, call: Any, *given: np.ndarray) -> None:
        """Add a call of a module or a function, whose weights are drawn anew."""
        if not isinstance(call, self.nn.Module):
            call = _Function.of(self.nn, call)
        for tensor in (*call.parameters(), *call.buffers()):
            if tensor.is_floating_point():
                data = self.torch.from_numpy(self.rng.standard_normal(tuple(tensor.shape)).astype("float32") * 0.5)
                tensor.data = data.to(tensor.dtype)
        for name, tensor in call.named_buffers():
            if name.endswith("running_var"):
                tensor.data = tensor.data.abs() + 0.1
        self.calls.append((call, len(given)))
        self.given += [np.asarray(a) for a in given]  # products of scalars are no arrays

    def real(self, *shape: int) -> np.ndarray:
        """Return float values."""
        return self.values(shape)


def _flat(result: Any) -> list[Any]:
    if isinstance(result, (tuple, list)):
        return [t for part in result for t in _flat(part)]
    return [] if result is None else [result]


class _Function:
    """Functions as modules."""

    @staticmethod
    def of(nn: Any, function: Any) -> Any:
        class Call(nn.Module):
            def forward(self, *xs: Any) -> Any:
                return function(*xs)

        return Call()


def _sizes(b: TorchBuilder, rank: int) -> list[int]:
    return [b.int(4, {1: 12, 2: 8, 3: 6}[rank]) for _ in range(rank)]


def convolution(b: TorchBuilder) -> None:
    rank, groups = b.pick(1, 1, 2, 2, 3), b.pick(1, 1, 2, 3)
    kernel = [b.int(1, 3) for _ in range(rank)]
    own, outs = b.int(1, 4), b.int(1, 4)
    how: dict[str, Any] = {"groups": groups, "bias": b.chance(0.7)}
    how["dilation"] = b.pick(1, 1, 2) if rank < 3 else 1
    padding = b.pick(0, "same", "valid", [b.int(0, k - 1) for k in kernel])
    how["padding"] = padding
    if padding != "same":
        how["stride"] = [b.int(1, 3) for _ in kernel]
    if padding != "valid" and padding != 0 and b.chance(0.4):
        how["padding_mode"] = b.pick("reflect", "replicate", "circular") if rank < 3 else "replicate"
    sizes = [s + 2 for s in _sizes(b, rank)] if rank < 3 else _sizes(b, rank)
    module = getattr(b.nn, f"Conv{rank}d")(groups * own, groups * outs, kernel, **how)
    shape = (groups * own, *sizes) if b.chance(0.1) else (b.int(1, 2), groups * own, *sizes)
    b.add(module, b.real(*shape))


def transposed(b: TorchBuilder) -> None:
    rank, groups = b.pick(1, 2, 2, 3), b.pick(1, 1, 2)
    kernel, stride = [b.int(1, 3) for _ in range(rank)], [b.int(1, 3) for _ in range(rank)]
    dilation = b.pick(1, 1, 2)
    how: dict[str, Any] = {"stride": stride, "groups": groups, "bias": b.chance(), "dilation": dilation}
    how["padding"] = [b.int(0, k - 1) for k in kernel]
    how["output_padding"] = [b.int(0, max(s, dilation) - 1) if b.chance(0.4) else 0 for s in stride]
    own, outs = b.int(1, 3), b.int(1, 3)
    module = getattr(b.nn, f"ConvTranspose{rank}d")(groups * own, groups * outs, kernel, **how)
    b.add(module, b.real(b.int(1, 2), groups * own, *(b.int(2, 4) + 1 for _ in range(rank))))


def pool(b: TorchBuilder) -> None:
    rank, kind = b.pick(1, 2, 2, 3), b.pick("Max", "Max", "Avg", "Avg", "LP")
    kernel = [b.int(1, 3) for _ in range(rank)]
    stride = [b.int(1, 3) for _ in range(rank)]
    how: dict[str, Any] = {"ceil_mode": b.chance(0.4)}
    if kind == "LP":
        module = getattr(b.nn, f"LPPool{rank}d")(b.int(1, 3), kernel if rank > 1 else kernel[0], **how)
    else:
        how |= {"stride": stride, "padding": [b.int(0, k // 2) for k in kernel]}
        if kind == "Max":
            how["dilation"] = b.pick(1, 1, 2)
            how["return_indices"] = b.chance(0.15) and rank == 2
        else:
            how["count_include_pad"] = b.chance()
            if rank > 1 and b.chance(0.2):
                how["divisor_override"] = b.int(1, 7)
        if rank == 1 and kind == "Avg":
            kernel, how = kernel[0], {k: v[0] if isinstance(v, list) else v for k, v in how.items()}
        module = getattr(b.nn, f"{kind}Pool{rank}d")(kernel, **how)
    x = b.real(b.int(1, 2), b.int(1, 4), *_sizes(b, rank))
    b.add(module, np.abs(x) + np.float32(0.1) if kind == "LP" else x)


def adaptive(b: TorchBuilder) -> None:
    rank, kind = b.pick(1, 2, 2, 3), b.pick("Max", "Avg", "Avg")
    to = [b.int(1, 5) for _ in range(rank)]
    if b.chance(0.2):
        to[b.int(0, rank - 1)] = None  # type: ignore[call-overload]
    module = getattr(b.nn, f"Adaptive{kind}Pool{rank}d")(to if rank > 1 else to[0] or 1)
    b.add(module, b.real(b.int(1, 2), b.int(1, 4), *_sizes(b, rank)))


def normalization(b: TorchBuilder) -> None:
    nn, c, epsilon = b.nn, b.int(1, 6), float(b.pick(1e-5, 1e-3))
    rank = b.pick(1, 2, 2, 3)
    image = (b.int(1, 3), c, *(b.int(1, 5) + 1 for _ in range(rank)))
    kind = b.pick("batch", "instance", "layer", "layer", "group", "rms", "response", "normalize")
    affine = b.chance(0.7)
    if kind == "batch":
        shape = image if rank > 1 or b.chance() else image[:2]
        b.add(getattr(nn, f"BatchNorm{rank}d")(c, epsilon, affine=affine), b.real(*shape))
    elif kind == "instance":
        b.add(getattr(nn, f"InstanceNorm{rank}d")(c, epsilon, affine=affine), b.real(*image))
    elif kind in ("layer", "rms"):
        own = image[b.int(1, len(image) - 1) :]
        how = {"elementwise_affine": affine} | ({"bias": b.chance()} if kind == "layer" else {})
        b.add({"layer": nn.LayerNorm, "rms": nn.RMSNorm}[kind](own, epsilon, **how), b.real(*image))
    elif kind == "group":
        groups = b.int(1, 3)
        shape = (image[0], groups * c, *image[2:])
        b.add(nn.GroupNorm(groups, groups * c, epsilon, affine=affine), b.real(*shape))
    elif kind == "response":
        how = {"alpha": float(b.pick(1e-4, 0.1)), "beta": float(b.pick(0.75, 0.5)), "k": float(b.pick(1.0, 2.0))}
        b.add(nn.LocalResponseNorm(b.int(1, 5), **how), b.real(*image))
    else:
        p, axis = float(b.pick(1.0, 2.0, 3.0)), b.axis(len(image))
        b.add(lambda x: nn.functional.normalize(x, p, axis), b.real(*image))


def activation(b: TorchBuilder) -> None:
    nn, shape = b.nn, b.shape(2, 4)
    a, c = float(b.pick(0.1, 0.5, 1.0, 2.0)), float(b.pick(0.25, 1.5))
    module = b.pick(
        nn.ELU(a), nn.SELU(), nn.CELU(a), nn.GELU(), nn.GELU(approximate="tanh"), nn.Softplus(a, 3.0), nn.Softshrink(a),
        nn.Hardshrink(a), nn.Hardtanh(-a, c), nn.Mish(), nn.SiLU(), nn.LogSigmoid(), nn.Softsign(), nn.Tanhshrink(),
        nn.Threshold(c, a), nn.RReLU(0.1, 0.3), nn.Softmin(b.axis(len(shape))), nn.LogSoftmax(b.axis(len(shape))),
        nn.Softmax(b.axis(len(shape))), nn.Hardsigmoid(), nn.Hardswish(), nn.ReLU6(), nn.LeakyReLU(a), nn.PReLU(shape[1]),
        nn.PReLU(),
    )  # fmt: skip
    b.add(module, b.real(*shape) * np.float32(2))


def gated(b: TorchBuilder) -> None:
    shape = list(b.shape(1, 4))
    axis = b.axis(len(shape))
    shape[axis] *= 2
    b.add(b.nn.GLU(axis), b.real(*shape))


def recurrent(b: TorchBuilder) -> None:
    kind = b.pick("LSTM", "GRU", "RNN")
    depth, units, layers = b.int(1, 5), b.int(2, 5), b.pick(1, 1, 2)
    how: dict[str, Any] = {"num_layers": layers, "bias": b.chance(0.8), "batch_first": b.chance(0.6)}
    how["bidirectional"] = b.chance(0.3)
    if kind == "LSTM" and b.chance(0.2):
        how["proj_size"] = units - 1
    if kind == "RNN":
        how["nonlinearity"] = b.pick("tanh", "relu")
    module = getattr(b.nn, kind)(depth, units, **how)
    shape = (b.int(1, 4), b.int(1, 4), depth)
    b.add(module, b.real(*shape[b.chance(0.15) :]))


def cell(b: TorchBuilder) -> None:
    kind, depth, units, n = b.pick("LSTMCell", "GRUCell", "RNNCell"), b.int(1, 5), b.int(1, 5), b.int(1, 3)
    module = getattr(b.nn, kind)(depth, units, bias=b.chance(0.8))
    states = [b.real(n, units) for _ in range(2 if kind == "LSTMCell" else 1)]

    class Cell(b.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell = module

        def forward(self, x: Any, *held: Any) -> Any:
            return self.cell(x, held if kind == "LSTMCell" else next(iter(held)))

    b.add(Cell(), b.real(n, depth), *states)


def attention(b: TorchBuilder) -> None:
    nn, heads, own = b.nn, b.pick(1, 2, 3), b.int(1, 4)
    n, q, k = b.int(1, 2), b.int(1, 4), b.int(1, 5)
    if b.chance(0.4):
        width = heads * own

        class Attention(nn.Module):
            def __init__(self, first: bool, weights: bool) -> None:
                super().__init__()
                self.own, self.weights = nn.MultiheadAttention(width, heads, batch_first=first), weights

            def forward(self, x: Any, y: Any) -> Any:
                return self.own(x, y, y, need_weights=self.weights)

        first = b.chance()
        shapes = [(n, q, width), (n, k, width)] if first else [(q, n, width), (k, n, width)]
        b.add(Attention(first, b.chance()), *(b.real(*s) for s in shapes))
        return
    if b.chance(0.3):
        how: dict[str, Any] = {"dim_feedforward": b.int(2, 6), "batch_first": b.chance(), "norm_first": b.chance()}
        how["activation"] = b.pick("relu", "gelu")
        b.add(nn.TransformerEncoderLayer(heads * own, heads, **how), b.real(n, q, heads * own))
        return
    given = [b.real(n, heads, q, own), b.real(n, heads, k, own), b.real(n, heads, k, own)]
    causal, scale = b.chance(0.4), b.pick(None, 0.3)
    if not causal and b.chance():
        mask = b.pick(b.values((q, k)), b.values((n, 1, q, k)))
        given.append(mask)
    attend = nn.functional.scaled_dot_product_attention
    b.add(lambda x, y, z, m=None: attend(x, y, z, m, is_causal=causal, scale=scale), *given)


def upsample(b: TorchBuilder) -> None:
    rank = b.pick(1, 2, 2, 3)
    mode = b.pick("nearest", "nearest-exact", {1: "linear", 2: "bilinear", 3: "trilinear"}[rank],
                  "bicubic" if rank == 2 else "area")  # fmt: skip
    how: dict[str, Any] = {"mode": mode}
    if mode.endswith(("linear", "cubic")):
        how["align_corners"] = b.chance()
    if b.chance(0.6):
        how["size"] = [b.int(1, 9) for _ in range(rank)]
    else:
        how["scale_factor"] = [float(b.pick(2.0, 0.5, 1.5, 3.0)) for _ in range(rank)]
    b.add(lambda x: b.nn.functional.interpolate(x, **how), b.real(b.int(1, 2), b.int(1, 3), *_sizes(b, rank)))


def padding(b: TorchBuilder) -> None:
    rank = b.pick(1, 2, 3)
    mode = b.pick("constant", "reflect", "replicate", "circular")
    widths = [b.int(0, 3) if b.chance(0.7) else 0 for _ in range(2 * rank)]
    if mode == "constant" and b.chance(0.3):
        widths[b.int(0, 2 * rank - 1)] = -1
    value = float(b.pick(0.0, 1.5)) if mode == "constant" else None
    x = b.real(b.int(1, 2), b.int(1, 3), *_sizes(b, rank))
    b.add(lambda x: b.nn.functional.pad(x, widths, mode, value), x)


def folding(b: TorchBuilder) -> None:
    kernel, how = [b.int(1, 3), b.int(1, 3)], {"dilation": b.pick(1, 2), "padding": b.int(0, 1), "stride": b.int(1, 2)}
    size, n, c = [b.int(5, 8), b.int(5, 8)], b.int(1, 2), b.int(1, 3)
    unfold = b.nn.Unfold(kernel, **how)
    if b.chance():
        b.add(unfold, b.real(n, c, *size))
        return
    count = int(unfold(b.torch.zeros(n, c, *size)).shape[-1])
    b.add(b.nn.Fold(size, kernel, **how), b.real(n, c * kernel[0] * kernel[1], count))


def shuffles(b: TorchBuilder) -> None:
    r, n, c, h, w = b.int(2, 3), b.int(1, 2), b.int(1, 3), b.int(1, 4), b.int(1, 4)
    kind = b.int(0, 2)
    if kind == 0:
        b.add(b.nn.PixelShuffle(r), b.real(n, c * r * r, h, w))
    elif kind == 1:
        b.add(b.nn.PixelUnshuffle(r), b.real(n, c, h * r, w * r))
    else:
        b.add(b.nn.ChannelShuffle(r), b.real(n, c * r, h, w))


def dense(b: TorchBuilder) -> None:
    depth, units = b.int(1, 7), b.int(1, 6)
    kind = b.int(0, 2)
    if kind == 0:
        b.add(b.nn.Linear(depth, units, bias=b.chance()), b.real(*b.shape(0, 3), depth))
    elif kind == 1:
        other, lead = b.int(1, 5), b.shape(1, 2)
        b.add(b.nn.Bilinear(depth, other, units, bias=b.chance()), b.real(*lead, depth), b.real(*lead, other))
    else:
        rows = b.int(2, 9)
        places = b.rng.integers(0, rows, b.shape(1, 2)).astype("int64")
        b.add(b.nn.Embedding(rows, depth, padding_idx=b.pick(None, 0)), places)


def products(b: TorchBuilder) -> None:
    torch, m, k, n = b.torch, b.int(1, 5), b.int(1, 5), b.int(1, 5)
    beta, alpha, lead = float(b.pick(1.0, 0.5, 0.0)), float(b.pick(1.0, 2.0)), b.shape(0, 2, 3)
    kind = b.int(0, 5)
    if kind == 0:
        c = b.pick((m, n), (n,), (m, 1), (1,))
        b.add(lambda x, y, z: torch.addmm(x, y, z, beta=beta, alpha=alpha), b.real(*c), b.real(m, k), b.real(k, n))
    elif kind == 1:
        given = [b.real(2, m, n), b.real(2, m, k), b.real(2, k, n)]
        b.add(lambda x, y, z: torch.baddbmm(x, y, z, beta=beta, alpha=alpha), *given)
    elif kind == 2:
        b.add(torch.matmul, b.real(*lead, m, k), b.real(*((1,) * len(lead) if b.chance() else lead), k, n))
    elif kind == 3:
        b.add(torch.cdist, b.real(2, m, k), b.real(2, n, k))
    elif kind == 4:
        b.add(torch.outer, b.real(m), b.real(n))
    else:
        b.add(lambda x, y: torch.tensordot(x, y, dims=([1], [0])), b.real(m, k, 2), b.real(k, n))


def statistics(b: TorchBuilder) -> None:
    torch, shape = b.torch, b.shape(1, 4)
    shape = tuple(d + 1 for d in shape)
    axes, keep = b.axes(len(shape)), b.chance()
    axis = axes[0]
    p = float(b.pick(1.0, 2.0, 3.0, float("inf")))
    call = b.pick(
        lambda x: torch.var(x, axes, correction=0, keepdim=keep), lambda x: torch.std(x, axes, keepdim=keep),
        lambda x: torch.linalg.vector_norm(x, p, axes, keep), lambda x: torch.logsumexp(x, axes, keep),
        lambda x: torch.cumsum(x, axis), lambda x: torch.cumprod(x, axis), lambda x: torch.max(x, axis, keepdim=keep),
        lambda x: torch.min(x, axis, keepdim=keep), lambda x: torch.argmin(x, axis, keep), lambda x: torch.prod(x, axis),
        lambda x: torch.sort(x, axis, descending=keep), lambda x: torch.topk(x, 1, axis, keep), lambda x: torch.amax(x, axes),
        lambda x: torch.mean(x, axes, keep), lambda x: torch.sum(x), lambda x: torch.median(x, axis)[0],
        lambda x: torch.any(x > 0.5, axis), lambda x: torch.all(x > -1, axis), lambda x: torch.aminmax(x, dim=axis),
        lambda x: torch.logcumsumexp(x, axis), lambda x: torch.count_nonzero(x > 0, axis),
    )  # fmt: skip
    b.add(call, b.real(*shape))


def moves(b: TorchBuilder) -> None:
    torch, shape = b.torch, tuple(d + 1 for d in b.shape(2, 4, 5))
    rank, axis, other = len(shape), b.axis(len(shape)), b.axis(len(shape))
    extent, shift = shape[axis], b.int(-3, 3)
    first, last, step = b.int(0, extent - 1), b.int(0, extent - 1), b.int(1, 2)
    places = torch.from_numpy(b.rng.integers(0, extent, b.int(1, 5)))
    axes = b.axes(rank)
    call = b.pick(
        lambda x: torch.roll(x, shift, axis), lambda x: torch.roll(x, [shift] * len(axes), axes),
        lambda x: torch.rot90(x, shift, (0, 1)), lambda x: torch.flip(x, axes), lambda x: torch.transpose(x, axis, other),
        lambda x: torch.narrow(x, axis, min(first, last), abs(first - last) + 1), lambda x: torch.index_select(x, axis, places),
        lambda x: torch.tril(x, shift), lambda x: torch.triu(x, shift), lambda x: torch.diagonal(x, shift % 2, 0, 1),
        lambda x: torch.chunk(x, 2, axis), lambda x: torch.unbind(x, axis), lambda x: torch.repeat_interleave(x, 2, axis),
        lambda x: x[:, places % shape[1]], lambda x: x[places % shape[0], places % shape[1]], lambda x: x[..., ::step],
        lambda x: x.unfold(axis, min(2, extent), step), lambda x: torch.diff(x, dim=axis), lambda x: x[..., None, -1],
        lambda x: torch.movedim(x, axis, other), lambda x: torch.stack([x, x * 2], axis), lambda x: torch.flatten(x, 0, 1),
        lambda x: torch.select(x, axis, last), lambda x: torch.tile(x, (2, 1)), lambda x: torch.masked_fill(x, x > 0.5, -1.0),
        lambda x: torch.tensor_split(x, 3, axis),
    )  # fmt: skip
    b.add(call, b.real(*shape))


def scatters(b: TorchBuilder) -> None:
    torch, shape = b.torch, b.shape(1, 3, 5)
    rank, axis = len(shape), b.axis(len(shape))
    rows = tuple(b.int(1, d) for d in shape)
    places = b.rng.integers(0, shape[axis], rows).astype("int64")
    lines = b.rng.permutation(shape[axis])[: b.int(1, shape[axis])].astype("int64")
    part = tuple(len(lines) if k == axis % rank else d for k, d in enumerate(shape))
    reduce = b.pick("sum", "prod", "amax", "amin")
    kind = b.int(0, 5)
    if kind == 0:
        b.add(lambda x, i: torch.gather(x, axis, i), b.real(*shape), places)
    elif kind == 1:
        b.add(lambda x, i, y: torch.scatter_add(x, axis, i, y), b.real(*shape), places, b.real(*rows))
    elif kind == 2:
        b.add(lambda x, i, y: torch.scatter_reduce(x, axis, i, y, reduce), b.real(*shape), places, b.real(*rows))
    elif kind == 3:
        b.add(lambda x, i, y: torch.index_add(x, axis, i, y), b.real(*shape), lines, b.real(*part))
    elif kind == 4:
        b.add(lambda x, i, y: torch.index_copy(x, axis, i, y), b.real(*shape), lines, b.real(*part))
    else:
        b.add(lambda x, i: torch.index_fill(x, axis, i, 0.5), b.real(*shape), lines)


def elementwise(b: TorchBuilder) -> None:
    torch, shape = b.torch, b.shape()
    small = tuple(1 if b.chance(0.4) else d for d in shape)[b.int(0, len(shape) - 1) if b.chance(0.3) else 0 :]
    kinds = (b.pick("float32", "int64", "int32", "bool"), b.pick("float32", "int64", "int32"))
    name = b.pick("add", "sub", "mul", "div", "maximum", "minimum", "lt", "eq", "ge", "ne", "atan2", "hypot", "floor_divide",
                  "remainder", "fmod", "where", "lerp", "addcmul", "clamp", "pow", "logaddexp", "copysign", "xlogy")  # fmt: skip
    if name in ("atan2", "hypot", "lerp", "addcmul", "pow", "logaddexp", "copysign", "xlogy"):
        kinds = ("float32", "float32")
    if (name == "sub" and kinds[0] == "bool") or name in ("floor_divide", "remainder", "fmod", "maximum", "minimum"):
        kinds = (kinds[1], kinds[1])
    x, y = b.values(shape, kinds[0]), b.values(small, kinds[1])
    if name in ("div", "floor_divide", "remainder", "fmod"):
        y = np.where(np.abs(y) < 0.3, np.ones_like(y), y)
    if name in ("pow", "xlogy"):
        x, y = np.abs(x) + np.float32(0.2), np.abs(y) + np.float32(0.2)
    call: Any = getattr(torch, name, None)
    if name == "where":
        call = lambda v, w: torch.where(v > 0, w, v)  # noqa: E731
    elif name == "lerp":
        call = lambda v, w: torch.lerp(v, w, 0.3)  # noqa: E731
    elif name == "addcmul":
        call = lambda v, w: torch.addcmul(v, w, v, value=0.5)  # noqa: E731
    elif name == "clamp":
        call = lambda v, w: torch.clamp(v.float(), max=w.float())  # noqa: E731
    elif name == "div" and b.chance():
        mode = b.pick("trunc", "floor")
        call = lambda v, w: torch.div(v, w, rounding_mode=mode)  # noqa: E731
    elif name in ("add", "sub") and kinds[0] != "bool" and b.chance(0.3):
        own = call
        call = lambda v, w: own(v, w, alpha=2)  # noqa: E731
    if b.chance(0.15) and name in ("add", "mul", "lt", "eq", "maximum", "minimum", "div"):
        held = torch.from_numpy(np.asarray(y))
        own_ = call
        b.add(lambda v: own_(v, held), x)
        return
    b.add(call, x, y)


def functions(b: TorchBuilder) -> None:
    torch, x = b.torch, b.real(*b.shape(0, 4))
    positive = np.abs(x) + np.float32(0.1)
    name = b.pick("exp", "exp2", "expm1", "erf", "erfc", "sin", "cos", "tan", "sinh", "cosh", "atan", "asinh", "floor", "ceil",
                  "round", "trunc", "frac", "sign", "square", "sinc", "isnan", "signbit", "deg2rad", "nan_to_num", "log",
                  "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal", "logit", "acosh", "logical_not")  # fmt: skip
    if name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal"):
        x = positive
    if name == "acosh":
        x = positive + np.float32(1)
    if name == "logit":
        x = np.clip(positive / 4, 0.05, 0.95).astype("float32")
    b.add(getattr(torch, name), x)


GENERATORS: Mapping[str, Generator] = {
    g.__name__: g
    for g in (
        convolution, convolution, transposed, pool, pool, adaptive, normalization, normalization, activation, activation,
        gated, recurrent, cell, attention, attention, upsample, padding, folding, shuffles, dense, products, statistics,
        statistics, moves, moves, scatters, elementwise, elementwise, functions,
    )
}  # fmt: skip
