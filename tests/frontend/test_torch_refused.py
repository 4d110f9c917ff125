"""Operators of torch.export that TVM's importer computes otherwise than torch are refused by name."""

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

pytestmark = pytest.mark.torch

_REFUSED: dict[str, Callable[[Any, Any, Any], Any]] = {
    "add.Tensor": lambda t, x, i: t.add(x, x, alpha=2),
    "mul.Tensor": lambda t, x, i: i * 0.5,
    "gt.Scalar": lambda t, x, i: i > 0.5,
    "div.Tensor": lambda t, x, i: i / i,
    "sgn.default": lambda t, x, i: t.sgn(i > 0),
    "add.Tensor ": lambda t, x, i: (i > 0) + (i > 1),
    "any.dim": lambda t, x, i: i.any(1),
    "randn.default": lambda t, x, i: x + t.randn(4),
    "batch_norm.default": lambda t, x, i: t.nn.functional.batch_norm(x, None, None, training=True),
    "grid_sampler.default": lambda t, x, i: t.nn.functional.grid_sample(x, x[..., :2], align_corners=False),
    "pad.default": lambda t, x, i: t.nn.functional.pad(x, (-1, 1, 0, 0), mode="circular"),
    "max_pool2d_with_indices.default": lambda t, x, i: t.nn.functional.max_pool2d(x, 2, return_indices=True)[1],
    "_upsample_bilinear2d_aa": lambda t, x, i: t.nn.functional.interpolate(
        x, size=(2, 2), mode="bilinear", antialias=True
    ),
    "avg_pool3d.default": lambda t, x, i: t.nn.functional.avg_pool3d(x, 2, divisor_override=3),
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
    torch = pytest.importorskip("torch")
    x, i = torch.rand(1, 4, 4, 4), torch.arange(6, dtype=torch.int32).reshape(2, 3)
    path = _saved(tmp_path / "net.pt2", lambda x, i: (x * 1.5, _REFUSED[name](torch, x, i)), x, i)
    with pytest.raises(LoadError, match=rf"operator {name.strip()}.* has a form that is not supported"):
        load(path)


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
