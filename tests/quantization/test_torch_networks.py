"""The layers of ResNet-18, MobileNetV2 and MobileNetV3 (small), narrowed, from a float `.pt2` by torchao's PT2E to emitted C.

Blocks that repeat the one before stand once or twice; `benchmarks/torch_zoo.py` has the whole networks.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tvm_cascade

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")
nn = torch.nn

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("quick_host")]


def _conv(given: int, made: int, size: int, stride: int = 1, groups: int = 1, act: Any = None) -> Any:
    """A convolution with its normalization and activation."""
    conv = nn.Conv2d(given, made, size, stride, size // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(made), *([act()] if act else []))


class _Sum(nn.Module):
    """A branch, plus what goes in or a projection of it, and the activation of the sum."""

    def __init__(self, branch: Any, beside: Any, act: Any) -> None:
        super().__init__()
        self.branch, self.beside, self.act = branch, beside, act

    def forward(self, x: Any) -> Any:
        return self.act(self.branch(x) + self.beside(x))


class _Excited(nn.Module):
    """Channels, each times a factor of their means."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.factors = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.ReLU(),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Hardsigmoid(),
        )

    def forward(self, x: Any) -> Any:
        return self.factors(x) * x


def _basic(given: int, made: int, stride: int) -> Any:
    branch = nn.Sequential(_conv(given, made, 3, stride, act=nn.ReLU), _conv(made, made, 3))
    beside = nn.Identity() if stride == 1 and given == made else _conv(given, made, 1, stride)
    return _Sum(branch, beside, nn.ReLU())


def _inverted(given: int, wide: int, made: int, size: int, stride: int, act: Any, excited: bool = False) -> Any:
    """An inverted bottleneck."""
    layers = [] if wide == given else [_conv(given, wide, 1, act=act)]
    layers += [_conv(wide, wide, size, stride, groups=wide, act=act), *([_Excited(wide)] if excited else [])]
    branch = nn.Sequential(*layers, _conv(wide, made, 1))
    return _Sum(branch, nn.Identity(), nn.Identity()) if stride == 1 and given == made else branch


def _ended(layers: list[Any], channels: int, *head: Any) -> Any:
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), *head, nn.Linear(channels, 10))


def _resnet18() -> Any:
    layers: list[Any] = [_conv(3, 8, 7, 2, act=nn.ReLU), nn.MaxPool2d(3, 2, 1)]
    for given, made, stride in ((8, 8, 1), (8, 16, 2), (16, 32, 2), (32, 64, 2)):
        layers += [_basic(given, made, stride), _basic(made, made, 1)]
    return _ended(layers, 64)


def _mobilenet_v2() -> Any:
    layers, given = [_conv(3, 8, 3, 2, act=nn.ReLU6)], 8
    for times, made, count, stride in ((1, 4, 1, 1), (6, 8, 2, 2), (6, 16, 2, 2), (6, 24, 1, 1)):
        for k in range(count):
            layers.append(_inverted(given, given * times, made, 3, stride if k == 0 else 1, nn.ReLU6))
            given = made
    layers += [_inverted(given, given * 6, 40, 3, 1, nn.ReLU6), _conv(40, 64, 1, act=nn.ReLU6)]
    return _ended(layers, 64, nn.Dropout(0.2))


def _mobilenet_v3() -> Any:
    hard, relu = nn.Hardswish, nn.ReLU
    layers = [_conv(3, 8, 3, 2, act=hard)]
    layers += [
        _inverted(8, 8, 8, 3, 2, relu, excited=True),
        _inverted(8, 36, 12, 3, 2, relu),
        _inverted(12, 44, 12, 3, 1, relu),
        _inverted(12, 48, 20, 5, 2, hard, excited=True),
        _inverted(20, 60, 20, 5, 1, hard, excited=True),
        _inverted(20, 64, 24, 5, 1, hard, excited=True),
    ]
    layers.append(_conv(24, 72, 1, act=hard))
    return _ended(layers, 64, nn.Linear(72, 64), hard(), nn.Dropout(0.2))


_NETWORKS: dict[str, Callable[[], Any]] = {
    "ResNet-18": _resnet18,
    "MobileNetV2": _mobilenet_v2,
    "MobileNetV3": _mobilenet_v3,
}


@pytest.mark.parametrize("name", _NETWORKS)
def test_networks_of_torchvision(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    net = _NETWORKS[name]().eval()
    for layer in net.modules():
        if isinstance(layer, nn.BatchNorm2d):
            nn.init.uniform_(layer.running_var, 0.2, 0.6)
    path, stored = tmp_path / "net.pt2", tmp_path / "int8.pt2"
    torch.export.save(torch.export.export(net, (torch.zeros((1, 3, 32, 32)),)), path)
    data = {"input": np.random.default_rng(0).normal(0, 1, (8, 3, 32, 32)).astype("float32")}
    result = tvm_cascade.quantize(path, data=data, output=stored)
    assert result.quantized_layers == result.layers
    tvm_cascade.compile(stored, target="host", output=tmp_path / "p")
    done = tvm_cascade.run(tmp_path / "p", inputs={"input": data["input"][:1]}, check=stored)
    assert done.ok and done.match and done.max_abs_diff is not None and done.output_step is not None
    assert done.max_abs_diff <= 3.01 * done.output_step
