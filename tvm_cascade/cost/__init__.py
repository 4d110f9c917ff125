"""Cost models: analytic, measured and learned, behind a single interface."""

from __future__ import annotations

from tvm_cascade.cost.analytic import AnalyticCost
from tvm_cascade.cost.device import DEVICES, Device, find_device
from tvm_cascade.cost.interface import CostModel, OpBound, OpFeatures, features, graph_features
from tvm_cascade.cost.processor import device_for

__all__ = [
    "DEVICES",
    "AnalyticCost",
    "CostModel",
    "Device",
    "OpBound",
    "OpFeatures",
    "device_for",
    "features",
    "find_device",
    "graph_features",
]
