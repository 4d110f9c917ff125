"""Weight-only networks of torchao: weights stay integers in flash."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tvm_cascade
from tvm_cascade.errors import LoadError

torch = pytest.importorskip("torch")
quantization: Any = pytest.importorskip("torchao.quantization")


def exported(path: Path, config: Any, unwrapped: bool = True) -> None:
    """Write a network of two layers, 12,288 weights and no biases, quantized by torchao."""
    from torchao.utils import unwrap_tensor_subclass

    torch.manual_seed(0)
    layers = (torch.nn.Linear(64, 128, bias=False), torch.nn.ReLU(), torch.nn.Linear(128, 32, bias=False))
    network = torch.nn.Sequential(*layers).eval()
    quantization.quantize_(network, config)
    program = torch.export.export(unwrap_tensor_subclass(network) if unwrapped else network, (torch.randn(1, 64),))
    torch.export.save(program, path)


def configurations() -> dict[str, tuple[Any, int]]:
    """A configuration, and the bytes of weights and scales."""
    granular = pytest.importorskip("torchao.quantization.granularity")
    intx = quantization.IntxWeightOnlyConfig
    return {
        "int8": (quantization.Int8WeightOnlyConfig(), 12288 + 640),
        "intx8": (intx(weight_dtype=torch.int8, granularity=granular.PerAxis(0)), 12288 + 640),
        "intx4": (intx(weight_dtype=torch.int4, granularity=granular.PerGroup(32)), 6144 + 4 * (256 + 128)),
    }


@pytest.mark.emulator
@pytest.mark.parametrize("name", ("int8", "intx8", "intx4"))
def test_weights_stay_integers(name: str, emulator: None, quick_host: None, tmp_path: Path) -> None:
    config, expected = configurations()[name]
    exported(tmp_path / "net.pt2", config)
    made = tvm_cascade.compile(tmp_path / "net.pt2", target="cortex-m4", output=tmp_path / "p")
    assert tvm_cascade.run(tmp_path / "p", check=tmp_path / "net.pt2").to_dict()["match"] is True
    assert sum(op.weight_bytes for op in made.plan.graph.ops) == expected


def test_wrapped_tensors_are_refused_with_the_remedy(tmp_path: Path) -> None:
    exported(tmp_path / "net.pt2", quantization.Int8WeightOnlyConfig(), unwrapped=False)
    with pytest.raises(LoadError, match=r"torchao\.utils\.unwrap_tensor_subclass before it is exported"):
        tvm_cascade.load(str(tmp_path / "net.pt2"))
