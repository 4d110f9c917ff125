"""The PyTorch side of the GPU benchmark computes what this project's graph computes (`make test-torch`)."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.passes.substitution_read import read_function
from tvm_cascade.substitution.evaluate import run
from tvm_cascade.testing.zoo import nasnet
from tvm_cascade.testing.zoo.inception import inception_e
from tvm_cascade.testing.zoo.squeezenet import squeezenet

torch = pytest.importorskip("torch")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from torch_model import TorchModel  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.mark.parametrize(
    "mod",
    [
        squeezenet(size=48, width=0.25, classes=10),
        inception_e(width=0.0625),
        nasnet.network("float32", repeats=1, channels=4).mod,
    ],
    ids=["squeezenet", "inception_e", "nasnet"],
)
def test_the_same_weights_give_the_same_outputs(mod):
    read = read_function(mod["main"])
    names = [str(r.node["name"]) for r in read.dag.inputs]
    rng = np.random.default_rng(0)
    data = {
        name: rng.standard_normal(r.shape).astype("float32") for name, r in zip(names, read.dag.inputs, strict=True)
    }
    expected = run(read.dag, {**read.constants, **data})
    model = TorchModel(read.dag, read.constants)
    with torch.inference_mode():
        result = model(*(torch.from_numpy(data[name]) for name in names))
    results = result if isinstance(result, tuple) else (result,)
    for made, wanted in zip(results, expected, strict=True):
        np.testing.assert_allclose(made.numpy(), wanted, rtol=1e-4, atol=1e-5)
