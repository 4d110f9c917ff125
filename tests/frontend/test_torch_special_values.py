"""PyTorch programs on NaN, infinities, zeros with a sign and numbers whose powers overflow equal PyTorch in every element."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade

pytestmark = pytest.mark.torch

_INF, _NAN = float("inf"), float("nan")
_LINE = (_NAN, _INF, -_INF, 0.0, -0.0, 0.5, -0.5, 1.0, -2.5, 6.0, 30.0, -30.0, 90.0, -104.0, 1e4, -1e30)
_ROWS = ((_NAN, 1, 2), (1, _NAN, -_INF), (-_INF, -_INF, -_INF), (_INF, _INF, 1), (_INF, -_INF, 0), (-100, -200, 3))
_ELEMENTS: dict[str, Callable[[Any, Any], Any]] = {
    "sign": lambda t, x: t.sign(x),
    "softshrink": lambda t, x: t.nn.functional.softshrink(x),
    "logsigmoid": lambda t, x: t.nn.functional.logsigmoid(x),
    "logit": lambda t, x: t.logit(x, 1e-3),
    "logaddexp": lambda t, x: t.logaddexp(x, x.flip(1)),
    "logaddexp2": lambda t, x: t.logaddexp2(x, x.flip(1)),
    "heaviside": lambda t, x: t.heaviside(x, t.full_like(x, 0.25)),
    "signbit": lambda t, x: t.signbit(x),
    "square root": lambda t, x: x**0.5,
    "reciprocal of a square root": lambda t, x: x**-0.5,
    "hypot": lambda t, x: t.hypot(x, x.flip(1)),
    "rrelu": lambda t, x: t.nn.functional.rrelu(x),
    "product by 0": lambda t, x: x * 0,
    "bounds of one element": lambda t, x: t.clamp(x, t.tensor([-1.0]), t.tensor([2.0])),
}
_REDUCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "logsumexp": lambda t, x: t.logsumexp(x, 1),
    "logcumsumexp": lambda t, x: t.logcumsumexp(x, 1),
}
_POOLS: dict[str, Callable[[Any, Any], Any]] = {
    "max_pool1d": lambda t, x: t.nn.functional.max_pool1d(x[:, :, 0], 3, 2, 1),
    "max_pool2d": lambda t, x: t.nn.functional.max_pool2d(x, 2),
    "max_pool2d, padded": lambda t, x: t.nn.functional.max_pool2d(x, 3, 2, 1),
    "max_pool2d, dilated": lambda t, x: t.nn.functional.max_pool2d(x, 2, 1, dilation=2),
    "max_pool2d, windows wholly in padding": lambda t, x: t.nn.functional.max_pool2d(x, 2, 1, 1, dilation=7),
    "max_pool2d, ceil_mode": lambda t, x: t.nn.functional.max_pool2d(x, 4, 3, ceil_mode=True),
    "max_pool2d, places": lambda t, x: t.nn.functional.max_pool2d(x, 2, return_indices=True)[1],
    "max_pool3d": lambda t, x: t.nn.functional.max_pool3d(x.unflatten(1, (2, 2)), 2),
    "adaptive_max_pool1d": lambda t, x: t.nn.functional.adaptive_max_pool1d(x.flatten(2), 5),
    "adaptive_max_pool2d": lambda t, x: t.nn.functional.adaptive_max_pool2d(x, (4, 5)),
}


@pytest.mark.parametrize("group", ["elements", "reductions", "pools"])
def test_special_values_equal_torch(tmp_path: Path, group: str) -> None:
    torch = pytest.importorskip("torch")
    functions = {"elements": _ELEMENTS, "reductions": _REDUCTIONS, "pools": _POOLS}[group]
    inputs = {"elements": torch.tensor([_LINE]), "reductions": torch.tensor(_ROWS)}
    x = inputs[group] if group in inputs else _planes(torch)

    class Network(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return tuple(f(torch, x) for f in functions.values())

    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Network().eval(), (x,)), path)
    tvm_cascade.compile(path, target="host", output=tmp_path / "project", cache=False)
    made = tvm_cascade.run(tmp_path / "project", inputs={"x": x.numpy()}).outputs
    for (name, function), ours in zip(functions.items(), made.values(), strict=True):
        want = function(torch, x).numpy()
        ours = np.reshape(ours, want.shape)
        np.testing.assert_allclose(ours, want, rtol=2e-5, atol=1e-6, err_msg=name)
        if "square root" in name:
            np.testing.assert_array_equal(np.signbit(ours[want == want]), np.signbit(want[want == want]))


def _planes(torch: Any) -> Any:
    """Four planes with infinities in whole windows, and with NaNs first, in the middle and last."""
    x = torch.linspace(-3, 3, 144).reshape(1, 4, 6, 6).clone()
    x[0, 0, :3, :3], x[0, 2], x[0, 3, 5, 5] = -_INF, -_INF, _INF
    x[0, 1, 2, 2] = x[0, 3, 0, 0] = x[0, 0, 5, 5] = _NAN
    return x
