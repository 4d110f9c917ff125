"""A network of the zoo as a PyTorch module with the same weights, to compare with: float operators of `read_function`."""

# torch is an extra; the modules of gpu/ are found by path.
# pyright: reportMissingImports=false
from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvm_cascade.errors import UnsupportedOperatorError
from tvm_cascade.substitution.dag import Dag

_GPU = Path(__file__).parent / "gpu"
sys.path += [str(_GPU), str(_GPU / "there")]

import torch_graph  # noqa: E402
from networks import record_of  # noqa: E402


def TorchModel(dag: Dag, weights: Mapping[str, np.ndarray]) -> Any:
    """The `torch.nn.Module` of a `Dag`; arguments of a call are its inputs in order.

    Raises `UnsupportedOperatorError` for operators that have no counterpart in PyTorch.
    """
    record, constants = record_of(dag, weights)
    unknown = torch_graph.unknown(record)
    if unknown:
        raise UnsupportedOperatorError("the PyTorch model", sorted(unknown), sorted(torch_graph.OPERATORS))
    return torch_graph.module(record, list(constants.values()))
