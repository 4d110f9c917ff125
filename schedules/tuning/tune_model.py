"""Learned cost model for kernel variants: corrects the analytic instruction estimate, to rank candidates.

As in `cost.learned`, gradient-boosted trees predict the logarithm of counted over analytic instructions, here from the
operator's features, the variant's name and the analytic estimate. Without xgboost, or with fewer than `LEAST` counts,
the analytic estimate is used as it is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import exp, log, prod
from typing import Any

import numpy as np

from tvm_cascade.cost.analytic import AnalyticCost
from tvm_cascade.cost.device import find_device
from tvm_cascade.cost.interface import OpFeatures, features
from tvm_cascade.cost.learned import stage_vector
from tvm_cascade.cost.records import CONCURRENT
from tvm_cascade.operators.table import REDUCTIONS
from tvm_cascade.schedules.tuning.counting import Count
from tvm_cascade.schedules.tuning.kernel_cost import KernelCost

LEAST = 40  # fewest counts that trees are trained on
_FORMS = ("generic", "few taps", "conv", "depthwise", "dot", "outer", "dense", "pool", "move")  # starts of names
_NUMBERS = 4  # numbers in a variant's name that are features
_TENSOR = re.compile(r"^([a-z]+\d+)\[([\d,]*)\]$")


def shape_features(key: str) -> OpFeatures:
    """Parse an operator's features from the `variants.shape_key`."""
    words = key.split()
    tensors = [(m[1], tuple(int(d) for d in m[2].split(",") if d)) for w in words if (m := _TENSOR.match(w))]
    inputs, (dtype, output) = [t[1] for t in tensors[:-1]], tensors[-1]
    weights = next((w[2:-1] for w in words if w.startswith("w[")), "")
    extents = [int(d) for d in weights.split(",") if d]
    numbers = [int(n) for w in words[1:] if w[0] in "kspa" for n in re.findall(r"-?\d+", w)]
    taps = prod(extents) // output[-1] if extents and output[-1] else 0
    macs = prod(output) * taps if words[0] in REDUCTIONS else 0
    return features(words[0], inputs, [output], dtype, macs, prod(extents) if extents else 0, numbers)


def variant_vector(variant: str, analytic: KernelCost) -> list[float]:
    """Compute a variant's features: from the name (kernel kind, core, blocking), and the logarithms of the analytic
    cost.
    """
    module, _, name = variant.rpartition(".")
    numbers = [float(n) for n in re.findall(r"\d+", name)][:_NUMBERS]
    return [
        *(float(name.startswith(form)) for form in _FORMS),
        float("scalar" in module),
        float(name.endswith("rows")),
        *numbers,
        *([-1.0] * (_NUMBERS - len(numbers))),
        log(max(analytic.instructions, 1.0)),
        log(max(analytic.bytes, 1.0)),
    ]


class CountModel:
    """Predictor of candidates' instructions from counts for further shapes on the same core and back end."""

    def __init__(self, counted: Mapping[str, Mapping[str, Count]], seed: int = 0) -> None:
        self._device = AnalyticCost(find_device("cpu"))
        self.trees: Any = None
        rows, targets = [], []
        for key in sorted(counted):
            head = self._shape(key)
            for variant in sorted(counted[key]):
                count = counted[key][variant]
                if count.analytic > 0 and count.instructions > 0:
                    rows.append([*head, *variant_vector(variant, KernelCost(count.analytic, count.bytes))])
                    targets.append(log(count.instructions / count.analytic))
        if len(rows) < LEAST:
            return
        try:
            import xgboost
        except ImportError:
            return
        settings = {"max_depth": 5, "eta": 0.15, "subsample": 0.9, "seed": seed, "nthread": 1}
        data = xgboost.DMatrix(np.array(rows), label=np.array(targets))
        self.trees = xgboost.train(settings, data, num_boost_round=120)

    def predict(self, key: str, variants: Sequence[str], analytic: Sequence[KernelCost]) -> list[float]:
        """Estimate the instructions for each variant of a shape."""
        if self.trees is None or not variants:
            return [a.instructions for a in analytic]
        head = self._shape(key)
        rows = np.array([[*head, *variant_vector(v, a)] for v, a in zip(variants, analytic, strict=True)])
        shifts = self.trees.inplace_predict(rows)
        return [a.instructions * exp(float(s)) for a, s in zip(analytic, shifts, strict=True)]

    def _shape(self, key: str) -> list[float]:
        return stage_vector(CONCURRENT, [[shape_features(key)]], self._device)
