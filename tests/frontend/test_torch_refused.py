"""Operators of torch.export are computed as torch does, or refused by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tvm_cascade.checking.reference import open_reference
from tvm_cascade.checking.reference_calls import reference_calls
from tvm_cascade.checking.sensitivity import read_program, run_exported
from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import io_spec, load
from tvm_cascade.testing.reference import Compiled

pytestmark = pytest.mark.torch

_PROJECTED = ((20, 4), (20, 2), (20,), (20,), (2, 5))  # weights of a cell of five units, of which it returns two
_Case = Callable[[Any, Any, Any], Any]
_REFUSED: dict[str, _Case] = {
    "randn.default": lambda t, x, i: x + t.randn(4),
    "batch_norm.default": lambda t, x, i: t.nn.functional.batch_norm(x, None, None, training=True),
    "special_i1.default": lambda t, x, i: t.special.i1(x),
    "special_log_ndtr.default": lambda t, x, i: t.special.log_ndtr(x),
    "to.dtype": lambda t, x, i: x.half(),
    "avg_pool2d.default": lambda t, x, i: t.nn.functional.avg_pool2d(i.to(t.int64)[None], 2),
}
_RIGHT: dict[str, _Case] = {
    "add with alpha": lambda t, x, i: t.add(x, x, alpha=2),
    "rsub with alpha": lambda t, x, i: t.rsub(x, i[0, 1], alpha=3),
    "integers times a float": lambda t, x, i: i * 0.5,
    "integers above a float": lambda t, x, i: i > 0.5,
    "integers by integers": lambda t, x, i: i / i,
    "signs of booleans": lambda t, x, i: t.sgn(i > 0),
    "sum of booleans": lambda t, x, i: (i > 0) + (i > 1),
    "product of booleans": lambda t, x, i: (i > 0) * (i > 1),
    "largest boolean": lambda t, x, i: (i > 4).amax(1),
    "any of numbers": lambda t, x, i: i.any(1),
    "largest of all": lambda t, x, i: t.amax(x),
    "places of a pool's maxima": lambda t, x, i: t.nn.functional.max_pool2d(x, 2, return_indices=True)[1].to(t.int32),
    "fmin": lambda t, x, i: t.fmin(x, t.where(x > 0.5, t.nan, 0.5)),
    "grid_sample": lambda t, x, i: t.nn.functional.grid_sample(x, x[..., :2], align_corners=False),
    "sorted booleans": lambda t, x, i: t.sort(i > 2, 0)[0],
    "places of sorted booleans": lambda t, x, i: t.argsort(i > 1, dim=0, descending=True, stable=True).to(t.int32),
    "largest booleans along an axis": lambda t, x, i: t.max(i > 4, 1)[0],
    "booleans that are close": lambda t, x, i: t.isclose(i > 2, i > 3),
    "NaN among booleans": lambda t, x, i: t.isnan(i > 2),
    "booleans by booleans": lambda t, x, i: t.addr(i > 2, i[:, 0] > 1, i[0] > 1),
    "stable order": lambda t, x, i: t.argsort(i % 2, dim=1, descending=True, stable=True).to(t.int32),
    "columns": lambda t, x, i: t.column_stack([i[0], i.T]),
    "planes": lambda t, x, i: t.dstack([i, i]),
    "quotient by integers": lambda t, x, i: t.divide(x, i[1, 0]),
    "softmax of integers": lambda t, x, i: t.softmax(i, 1, t.float32),
    "angles of integers": lambda t, x, i: t.angle(i - 2),
    "arc of zeros and infinities": lambda t, x, i: t.atan2(*t.meshgrid(*2 * [t.reciprocal((i - 2.0).flatten())])),
    "arc of zeros below and above": lambda t, x, i: t.atan2(0.0 * (i - 2.0), 2.0 - i),
    "median": lambda t, x, i: t.median(x, 2)[0],
    "place of the median": lambda t, x, i: t.median(x.reshape(8, 8), 1)[1].to(t.int32),
    "largest so far": lambda t, x, i: t.cummax(x, 2)[0],
    "place of the smallest so far": lambda t, x, i: t.cummin(i % 2, 1)[1].to(t.int32),
    "products so far": lambda t, x, i: t.cumprod(x, 3),
    "put": lambda t, x, i: t.put(x, i.to(t.int64), t.ones(2, 3)),
    "searchsorted": lambda t, x, i: t.searchsorted(i.flatten(), i, right=True).to(t.int32),
    "maxima by index": lambda t, x, i: t.index_reduce(x, 1, i[0].to(t.int64), x[:, 1:] * 2, "amax"),
    "means by index": lambda t, x, i: t.index_reduce(x, 1, i[0].to(t.int64) % 2, x[:, 1:] * 2, "mean"),
    "means scattered": lambda t, x, i: t.scatter_reduce(x[0, 0], 1, i[:1].to(t.int64), x[0, 1], "mean"),
    "a part of a source scattered": lambda t, x, i: t.scatter(x[0, 0], 1, i[:1].to(t.int64), x[0, 1]),
    "distances": lambda t, x, i: t.cdist(x[0], x[0] + 1, 3.0),
    "maxima of unequal windows": lambda t, x, i: t.nn.functional.adaptive_max_pool2d(x, (3, 2)),
    "places of maxima of unequal windows": lambda t, x, i: t.nn.functional.adaptive_max_pool2d(
        x, 3, return_indices=True
    )[1].to(t.int32),
    "smallest and largest": lambda t, x, i: t.stack(t.aminmax(x)),
    "an axis of size 1 left out": lambda t, x, i: t.squeeze(x, (0, 1)),
    "signs that are copied": lambda t, x, i: t.copysign(x, i[0, 0] - x),
    "circular pad by negative amounts": lambda t, x, i: t.nn.functional.pad(x, (-1, 2, 1, -2), mode="circular"),
    "circular pad by negative amounts alone": lambda t, x, i: t.nn.functional.pad(x, (-1, 0, 0, -2), mode="circular"),
    "antialias": lambda t, x, i: t.nn.functional.interpolate(x, size=(2, 2), mode="bilinear", antialias=True),
    "divisor of a pool": lambda t, x, i: t.nn.functional.avg_pool3d(x, 2, divisor_override=3),
    "divisor of a pool that is rounded up": lambda t, x, i: t.nn.functional.avg_pool2d(
        x, 3, 2, 1, ceil_mode=True, divisor_override=5
    ),
    "volumes convolved without a bias": lambda t, x, i: t.conv3d(x[None], t.ones(3, 1, 2, 1, 3), None, (1, 2, 1), 1),
    "groups normalized and resized": lambda t, x, i: t.nn.functional.interpolate(
        t.nn.functional.group_norm(x, 2), size=(3, 5), mode="bilinear"
    ),
    "projected in two layers and directions": lambda t, x, i: t.lstm(
        x[0],
        (t.zeros(4, 4, 2), t.zeros(4, 4, 5)),
        [t.ones(s) * 0.1 for s in _PROJECTED * 4],
        True,
        2,
        0.0,
        False,
        True,
        True,
    )[0],
}


def _saved(path: Path, function: Callable[..., Any], *inputs: Any, **keywords: Any) -> Path:
    torch = pytest.importorskip("torch")

    class Network(torch.nn.Module):
        def forward(self, *args: Any, **given: Any) -> Any:
            return function(*args, **given)

    torch.export.save(torch.export.export(Network().eval(), inputs, keywords), path)
    return path


@pytest.mark.parametrize("name", _REFUSED)
def test_an_operator_is_refused_by_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(LoadError, match=rf"operator {name}"):
        load(_with_inputs(tmp_path, _REFUSED[name])[0])


@pytest.mark.parametrize("name", _RIGHT)
def test_an_operator_equals_torch(tmp_path: Path, name: str) -> None:
    path, inputs, want = _with_inputs(tmp_path, _RIGHT[name])
    made = Compiled(load(path))(*inputs)[1]
    assert made.dtype == want.dtype
    np.testing.assert_allclose(made, want, rtol=1e-5, atol=1e-6)


def _with_inputs(folder: Path, case: _Case) -> tuple[Path, list[np.ndarray], np.ndarray]:
    """A file, inputs of its network, of floats and of integers, and what torch computes of them."""
    torch = pytest.importorskip("torch")
    x, i = torch.rand(1, 4, 4, 4), torch.arange(6, dtype=torch.int32).reshape(2, 3)
    path = _saved(folder / "net.pt2", lambda x, i: (x * 1.5, case(torch, x, i)), x, i)
    return path, [x.numpy(), i.numpy()], case(torch, x, i).numpy()


def test_outputs_that_are_none_are_left_out(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = _saved(tmp_path / "net.pt2", lambda x: (None, x * 2.0, None), torch.ones(1, 3))
    assert len(io_spec(load(path)).outputs) == 1
    (made,) = run_exported(read_program(path), {"args_0": torch.ones(1, 3).numpy()}).values()
    assert made.tolist() == [[2, 2, 2]]


def test_inputs_in_tuples_lists_and_keywords(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    one = torch.ones(2)
    path = _saved(
        tmp_path / "net.pt2", lambda pair, more: pair[0] - pair[1][0] * more, (one, [one + 1]), more=one + 2
    )  # one tensor given twice is one input
    program = read_program(path)
    first, second, more = program.graph_signature.user_inputs
    (made,) = run_exported(
        program, {first: (one * 9).numpy(), second: (one * 2).numpy(), more: (one * 3).numpy()}
    ).values()
    assert made.tolist() == [3, 3]


def test_a_state_by_inputs_and_outputs_is_kept_between_calls(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    path = _saved(tmp_path / "net.pt2", lambda x, h: (x * 2.0 + h, x + h), torch.ones(1, 3), torch.zeros(1, 3))
    x, h = read_program(path).graph_signature.user_inputs
    doubled, kept = read_program(path).graph_signature.user_outputs
    start = np.zeros((1, 3), "float32")
    state = SimpleNamespace(returned=kept, array=start, spec=SimpleNamespace(name=h))
    calls = [{x: np.full((1, 3), k, "float32")} for k in (1, 10, 100)]
    made = reference_calls(open_reference(path, calls[0]), calls, [state])  # type: ignore[list-item]
    assert [call[doubled][0, 0] for call in made] == [2, 21, 211]
    assert [list(call) for call in made] == [[doubled]] * 3


def test_a_state_beside_a_buffer_is_the_output_that_the_importer_names(tmp_path: Path) -> None:
    """Two outputs that are one tensor: their names count buffers in front of them."""
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", torch.zeros(1, 3))

        def forward(self, x: Any, h: Any) -> Any:
            made = x + h + self.kept
            self.kept.copy_(self.kept * 0.5 + x)
            return made, made

    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Net(), (torch.ones(1, 3), torch.zeros(1, 3))), path)
    spec = io_spec(load(path))
    (first, second, _) = [s.name for s in spec.outputs]
    names = list(run_exported(read_program(path), dict.fromkeys(("x", "h"), np.ones((1, 3), "float32"))))
    assert names == [first, second]
