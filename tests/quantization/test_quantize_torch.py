"""`quantize` of `.pt2` files by torchao, where it and torch are installed (`make torch`)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvm_cascade
from tvm_cascade.errors import UsageError

torch = pytest.importorskip("torch")
pytest.importorskip("torchao")
pytestmark = pytest.mark.torch


@pytest.fixture
def network(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    nn = torch.nn
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Conv2d(8, 4, 3),
        nn.Flatten(),
        nn.Linear(144, 5),
    )
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(net.eval(), (torch.zeros((1, 3, 8, 8)),)), path)
    return path


def test_a_program_that_runs_and_is_planned(network: Path, tmp_path: Path) -> None:
    (name,) = (s.name for s in interface(network))
    data = {name: np.random.default_rng(0).normal(0, 1, (10, 3, 8, 8)).astype("float32")}
    result = tvm_cascade.quantize(network, data=data, output=tmp_path / "q.pt2")
    assert (result.layers, result.quantized_layers, result.per_channel_layers) == (3, 3, 3)
    made = [tvm_cascade.validate(p, data=data, layerwise=True) for p in (network, tmp_path / "q.pt2")]
    assert all(r.reference == "torch" and r.cosine > 0.999 for r in made)
    floats, stored = (tvm_cascade.plan(p, stored_io=p != network).peak_bytes for p in (network, tmp_path / "q.pt2"))
    assert stored * 3 < floats
    with pytest.raises(UsageError, match=r"of \.onnx files only"):
        tvm_cascade.quantize(network, data=data, output=tmp_path / "r.pt2", float_last=1)
    assert not (tmp_path / "r.pt2").exists()


def test_dead_channels_of_a_program_are_left_out(tmp_path: Path) -> None:
    torch.manual_seed(0)
    nn = torch.nn
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 3), nn.Flatten(), nn.Linear(64, 5)).eval()
    with torch.no_grad():
        net[0].weight[[1, 4, 6]] = 0
    torch.export.save(torch.export.export(net, (torch.zeros((1, 3, 8, 8)),)), tmp_path / "net.pt2")
    (name,) = (s.name for s in interface(tmp_path / "net.pt2"))
    data = {name: np.random.default_rng(0).normal(0, 1, (10, 3, 8, 8)).astype("float32")}
    tvm_cascade.quantize(tmp_path / "net.pt2", data=data, output=tmp_path / "q.pt2")
    made = tvm_cascade.compile(tmp_path / "q.pt2", target="host", output=tmp_path / "p")
    assert [(layer["channels"], layer["of"]) for layer in made.removed] == [(3, 8), (0, 4)]
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "q.pt2").match


def test_ranges_by_a_histogram_leave_tails_out(network: Path, tmp_path: Path) -> None:
    (name,) = (s.name for s in interface(network))
    data = {name: np.random.default_rng(0).standard_t(3, (60, 3, 8, 8)).astype("float32")}
    found = {}
    for ranges in ("minmax", "histogram"):
        out = tmp_path / f"{ranges}.pt2"
        result = tvm_cascade.quantize(network, data=data, output=out, calibration=ranges)
        assert result.calibration == ranges and result.quantized_layers == 3
        found[ranges] = np.array(scales(out))
    assert len(found["minmax"]) == 5 and np.all(found["histogram"] <= found["minmax"])
    assert np.min(found["histogram"] / found["minmax"]) < 0.95
    with pytest.raises(UsageError, match=r"entropy or percentile.* of \.onnx files only"):
        tvm_cascade.quantize(network, data=data, output=tmp_path / "e.pt2", calibration="entropy")


def scales(path: Path) -> list[float]:
    """Scales of the activations of a program."""
    nodes = [(str(node.target), node.args) for node in torch.export.load(path).graph.nodes]
    return [args[1] for kind, args in nodes if "quantize_per_tensor" in kind and "dequantize" not in kind]


def interface(path: Path):
    from tvm_cascade.frontend import io_spec

    return io_spec(tvm_cascade.load(path)).inputs


def test_weights_of_four_bits(network: Path, tmp_path: Path) -> None:
    (name,) = (s.name for s in interface(network))
    data = {name: np.random.default_rng(0).normal(0, 1, (10, 3, 8, 8)).astype("float32")}
    weights = {}
    for bits in (8, 4):
        out = tmp_path / f"{bits}.pt2"
        result = tvm_cascade.quantize(network, data=data, output=out, weight_bits=bits, max_drop=100)
        flash = tvm_cascade.plan(out, target="cortex-m4", stored_io=True).flash
        assert flash is not None
        weights[bits] = flash[0]
        made = tvm_cascade.validate(out, data=data, layerwise=True)
        assert made.reference == "torch" and made.cosine > 0.999
    assert [(one.operator, one.weights, one.bits) for one in result.weight_bits] == [
        ("conv2d", 216, 4),
        ("conv2d", 288, 4),
        ("linear", 720, 4),
    ]
    assert all(one.snr_db is not None and 5 < one.snr_db < 60 for one in result.weight_bits)
    assert weights[8] - weights[4] > (288 + 720) // 2 - 50  # the first layer's three channels stay in bytes
    kept = tvm_cascade.quantize(network, data=data, output=tmp_path / "k.pt2", weight_bits=4, max_drop=1)
    assert kept.agreement >= tvm_cascade.quantize(network, data=data, output=tmp_path / "e.pt2").agreement - 0.01
