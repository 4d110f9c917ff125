"""Single layers of PT2E networks as PyTorch users write them: integers where they have a form, and right either way."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

from tvm_cascade.checking.reference import reference_outputs
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.importers.torch.package import torch_package
from tvm_cascade.passes.float_remains import float_remains
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.testing.reference import Compiled

pytestmark = pytest.mark.torch

_LOWER: Any = LowerQuantized()
torch: Any = torch_package()
_F: Any = torch.nn.functional


def _stored(x: Any, scale: float = 0.02) -> Any:
    ops, how = torch.ops.quantized_decomposed, (scale, 3, -128, 127, torch.int8)
    return ops.dequantize_per_tensor(ops.quantize_per_tensor(x, *how), *how)


def _check(path: Path, layer: Callable[[Any], Any], shape: tuple[int, ...], steps: float) -> list[str]:
    """The operators that stay float; results to a larger scale lie within `steps` of torch's."""

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return _stored(layer(_stored(x)), 0.031)

    x = torch.rand(shape, generator=torch.Generator().manual_seed(1)) * 4 - 2
    torch.export.save(torch.export.export(Network().eval(), (x,)), path)
    lowered = _LOWER(load(path))
    ours, theirs = Compiled(lowered)(x.numpy())[0], Network()(x).numpy()
    assert ours.shape == theirs.shape
    assert np.abs(ours - theirs).max() <= steps * 0.031 + 1e-5
    return [r.operator.removeprefix("relax.") for r in float_remains(lowered) if r.operator != "dequantize"]


_LAYERS: dict[str, tuple[Callable[[Any], Any], float]] = {
    "reflected": (lambda x: _F.pad(x, (1, 2, 1, 0), mode="reflect"), 0),
    "replicated": (lambda x: _F.pad(x, (1, 2, 1, 0), mode="replicate"), 0),
    "circular": (lambda x: _F.pad(x, (1, 2, 1, 0), mode="circular"), 0),
    "padded by a number": (lambda x: _F.pad(x, (1, 2, -1, 0), value=0.513), 0),
    "average, padding counted": (lambda x: _F.avg_pool2d(x, 3, 2, 1), 0),
    "average, rounded up": (lambda x: _F.avg_pool2d(x, (3, 2), 2, 1, ceil_mode=True, count_include_pad=False), 0),
    "adaptive": (lambda x: _F.adaptive_avg_pool2d(x, (3, 4)), 0),
    "nearest": (lambda x: _F.interpolate(x, scale_factor=1.7), 0),
    "bilinear": (lambda x: _F.interpolate(x, scale_factor=2, mode="bilinear"), 1),
    "at least": (lambda x: x.clamp(min=-0.5), 0),
    "at most": (lambda x: x.clamp_max(0.5), 0),
    "stacked": (lambda x: torch.stack([x, _stored(-x)], 1), 0),
    "larger": (lambda x: torch.maximum(x, _stored(-x, 0.015)), 1),
    "chosen": (lambda x: torch.where(x > 0.1, x, _stored(-x, 0.015)), 1),
}


@pytest.mark.parametrize("name", _LAYERS)
def test_layers_stay_integers(tmp_path: Path, name: str) -> None:
    layer, steps = _LAYERS[name]
    assert _check(tmp_path / "n.pt2", layer, (1, 4, 9, 8), steps) == []


def test_pools_of_rank_three(tmp_path: Path) -> None:
    assert _check(tmp_path / "n.pt2", lambda x: _F.avg_pool1d(x, 3, 2, 1), (1, 4, 17), 0) == []


def test_an_average_keeps_its_divisor(tmp_path: Path) -> None:
    layer = lambda x: _F.avg_pool2d(x, 3, 2, 1, divisor_override=5)  # noqa: E731
    assert _check(tmp_path / "n.pt2", layer, (1, 4, 9, 8), 0) == ["nn.avg_pool2d", "multiply"]


def test_a_blend_by_scales_that_give_no_whole_size(tmp_path: Path) -> None:
    _check(tmp_path / "n.pt2", lambda x: _F.interpolate(x, scale_factor=1.7, mode="bilinear"), (1, 4, 9, 8), 1)


@pytest.mark.parametrize("mode", ["bilinear", "bicubic", "trilinear"])
def test_aligned_corners_are_those_of_the_size(tmp_path: Path, mode: str) -> None:
    """Also by scales that give no whole size, from which ONNX would take the last corner."""

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return _F.interpolate(x, scale_factor=1.5, mode=mode, align_corners=True)

    shape = (1, 2, 3, 5, 7) if mode == "trilinear" else (1, 2, 5, 7)
    x = torch.rand(shape, generator=torch.Generator().manual_seed(1))
    torch.export.save(torch.export.export(Network(), (x,)), tmp_path / "n.pt2")
    np.testing.assert_allclose(
        Compiled(load(tmp_path / "n.pt2"))(x.numpy())[0], Network()(x).numpy(), rtol=1e-5, atol=1e-5
    )


_NORMS: dict[str, Callable[[Any], Any]] = {
    "of all": lambda x: torch.linalg.norm(x, keepdim=True),
    "of a vector": lambda x: torch.linalg.vector_norm(x, 3, keepdim=True),
    "old name": lambda x: torch.norm(x, keepdim=True),
    "of matrices": lambda x: torch.linalg.norm(x, "fro", keepdim=True),
    "of rows": lambda x: torch.linalg.norm(x, dim=1, keepdim=True),
    "without axes": lambda x: torch.linalg.norm(x),
}


@pytest.mark.parametrize("name", _NORMS)
def test_norms_keep_their_axes(tmp_path: Path, name: str) -> None:
    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return _NORMS[name](x)

    x = torch.rand((3, 4), generator=torch.Generator().manual_seed(1))
    torch.export.save(torch.export.export(Network(), (x,)), tmp_path / "n.pt2")
    made, wanted = Compiled(load(tmp_path / "n.pt2"))(x.numpy())[0], Network()(x).numpy()
    assert made.shape == wanted.shape
    np.testing.assert_allclose(made, wanted, rtol=1e-5)


def _held(**constants: Any) -> dict[str, Any]:
    return {name: torch.nn.Buffer(torch.tensor(value)) for name, value in constants.items()}


_PAIR = [[0, -1], [-2, 1]]
_GATHERS: dict[str, tuple[Callable[..., Any], dict[str, Any], tuple[int, ...]]] = {
    "last of an axis": (lambda net, x: x[:, -1], {}, (2, 5, 6)),
    "first axis from the end": (lambda net, x: x[-2], {}, (2, 5, 6)),
    "by a tensor": (lambda net, x: x[:, net.i], _held(i=[0, -1, 2]), (2, 5, 6)),
    "by a matrix": (lambda net, x: x[net.i], _held(i=_PAIR), (3, 5)),
    "pairs": (lambda net, x: x[net.i, net.i], _held(i=[0, -1, 1]), (3, 5)),
    "pairs of neighbours": (lambda net, x: x[:, net.i, net.j], _held(i=_PAIR, j=_PAIR), (2, 4, 5, 3)),
    "pairs that are apart": (lambda net, x: x[:, net.i, :, net.i], _held(i=[0, -1, 1]), (2, 4, 3, 5)),
    "by computed constants": (lambda net, x: torch.index_select(x, 1, net.i.abs()), _held(i=[0, -1, 2]), (2, 5)),
    "along an axis": (lambda net, x: torch.gather(x, 1, net.i), _held(i=[[0, 1], [4, 2]]), (2, 5)),
    "rolled": (lambda net, x: torch.roll(x, (-2, 1), (1, 2)), {}, (2, 5, 3)),
    "along an axis, widened": (lambda net, x: torch.take_along_dim(x, net.i, 1), _held(i=[[[0], [-1]]]), (2, 5, 3)),
    "scattered": (lambda net, x: x.scatter(1, net.i, 0.5), _held(i=[[0], [4]]), (2, 5)),
    "flattened": (lambda net, x: torch.take(x, net.i), _held(i=[[0, -1], [4, 2]]), (2, 5)),
    "last step of an LSTM": (lambda net, x: net.r(x)[0][-1], {"r": torch.nn.LSTM(8, 16)}, (5, 1, 8)),
    "all of an LSTM": (lambda net, x: net.r(x), {"r": torch.nn.LSTM(8, 16, bidirectional=True)}, (5, 1, 8)),
    "an LSTM of two layers in both directions": (
        lambda net, x: net.r(x)[1],
        {"r": torch.nn.LSTM(8, 6, 2, bidirectional=True, batch_first=True)},
        (2, 5, 8),
    ),
    "an LSTM with a projection": (lambda net, x: net.r(x), {"r": torch.nn.LSTM(8, 6, 2, proj_size=3)}, (5, 2, 8)),
    "a GRU without biases": (lambda net, x: net.r(x), {"r": torch.nn.GRU(8, 6, bias=False)}, (5, 2, 8)),
    "an RNN": (lambda net, x: net.r(x, x[:1, :, :6]), {"r": torch.nn.RNN(8, 6)}, (5, 2, 8)),
    "an RNN of relu": (lambda net, x: net.r(x), {"r": torch.nn.RNN(8, 6, nonlinearity="relu")}, (5, 2, 8)),
    "last step of a GRU": (lambda net, x: net.r(x)[0][-1], {"r": torch.nn.GRU(8, 16)}, (5, 1, 8)),
    "output padding of more than a stride": (
        lambda net, x: net.c(x),
        {"c": torch.nn.ConvTranspose1d(4, 6, 3, 1, 1, output_padding=1, groups=2, dilation=2)},
        (1, 4, 7),
    ),
    "output padding of strides in a plane": (
        lambda net, x: net.c(x),
        {"c": torch.nn.ConvTranspose2d(2, 3, (2, 3), (2, 1), output_padding=(3, 2), dilation=(4, 3))},
        (1, 2, 4, 5),
    ),
    "a layer of a transformer": (
        lambda net, x: net.r(x),
        {"r": torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True).eval()},
        (1, 5, 8),
    ),
    "attention with its weights": (lambda net, x: net.r(x, x, x), {"r": torch.nn.MultiheadAttention(8, 2)}, (5, 1, 8)),
}


@pytest.mark.parametrize("name", _GATHERS)
def test_gathers_and_recurrent_layers_equal_torch(tmp_path: Path, name: str) -> None:
    compute, parts, shape = _GATHERS[name]

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            for key, part in parts.items():
                setattr(self, key, part)

        def forward(self, x: Any) -> Any:
            return compute(self, torch.relu(x))

    x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    path = tmp_path / "n.pt2"
    torch.export.save(torch.export.export(Network().eval(), (x,)), path)
    with torch.no_grad():
        theirs = [v.numpy() for v in torch.utils._pytree.tree_leaves(Network()(x))]
    mod = load(path)
    assert '"int64"' not in mod.script()  # kernels do not mix wide integers with indices
    for ours, want in zip(Compiled(mod)(x.numpy()), theirs, strict=True):
        np.testing.assert_allclose(ours, want, rtol=1e-5, atol=1e-6)
    expected = reference_outputs(path, {"x": x.numpy()}).outputs.values()
    assert [v.shape for v in expected] == [v.shape for v in theirs]


def test_computed_indices_count_from_the_end(tmp_path: Path) -> None:
    class Network(torch.nn.Module):
        def forward(self, x: Any, i: Any) -> Any:
            return x[:, i]

    x, i = torch.rand(2, 5), torch.tensor([-1, 0, -5], dtype=torch.int32)
    torch.export.save(torch.export.export(Network(), (x, i)), tmp_path / "n.pt2")
    (ours,) = Compiled(load(tmp_path / "n.pt2"))(x.numpy(), i.numpy())
    np.testing.assert_array_equal(ours, x.numpy()[:, i.numpy()])


def test_an_index_by_booleans_is_refused(tmp_path: Path) -> None:
    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x[x > 0]

    torch.export.save(torch.export.export(Network(), (torch.rand(3, 4),)), tmp_path / "n.pt2")
    with pytest.raises(LoadError, match="booleans"):
        load(tmp_path / "n.pt2")


def test_token_ids_are_narrow(tmp_path: Path) -> None:
    """An embedding takes int32, and its random ids lie below the table's extent."""

    class Network(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = torch.nn.Embedding(11, 6)

        def forward(self, ids: Any) -> Any:
            return torch.relu(self.table(ids)).mean(1)

    net, ids = Network().eval(), torch.tensor([[1, 10, 0]])
    torch.export.save(torch.export.export(net, (ids,)), tmp_path / "n.pt2")
    mod = load(tmp_path / "n.pt2")
    (spec,) = io_spec(mod).inputs
    assert (spec.dtype, spec.extent) == ("int32", 11)
    np.testing.assert_allclose(Compiled(mod)(ids.numpy().astype("int32"))[0], net(ids).detach().numpy(), atol=1e-6)
