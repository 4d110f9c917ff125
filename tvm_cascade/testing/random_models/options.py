"""Planning options at random, for one random model and target."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvm_cascade.testing.random_models.model import RandomModel
from tvm_cascade.testing.random_models.operators import Operators

_MOST_SEARCHED = 20  # outputs; the search for a plan of more takes nearly all of the time of a run, and is limited
_SEARCHED = 2.0  # seconds
_MEMORIES = {"cortex-m7": ("sram", "psram"), "cortex-m55": ("dtcm", "sram")}  # names of the emulated boards' RAMs


def random_options(seed: int, model: RandomModel | Operators, target: str) -> dict[str, Any]:
    """Return keywords of `tvm_cascade.compile`; often none, for the defaults are used most.

    Caps are up to four times as large as the largest operand, so that some can be met and others not.
    """
    rng = np.random.default_rng([seed, 4])
    options: dict[str, Any] = {}
    width = {"float32": 4, "int16": 2}.get(model.form, 1)
    largest = width * max(o.size for o in model.operands)

    def maybe(name: str, probability: float, *values: Any) -> None:
        if rng.random() < probability:
            options[name] = values[int(rng.integers(len(values)))]

    if model.parts > _MOST_SEARCHED:
        options["time_limit"] = _SEARCHED
    if rng.random() < 0.3:
        return options
    maybe("sram", 0.3, int(largest * rng.uniform(0.8, 4.0)))
    maybe("max_macs", 0.25, 1.2, 1.5, 3.0)
    maybe("max_time", 0.3, 1.0, 1.05, 2.0, 10.0)
    maybe("stream_input", 0.15, True)
    maybe("layerwise", 0.1, True)
    maybe("overlap", 0.15, False)
    maybe("granularity", 0.3, "row", "pixel")
    maybe("rewrite", 0.3, True, False)
    if target != "host":
        maybe("flash_wait", 0.05, 1.0)
        maybe("ram_weights", 0.08, 512, 1 << 16)
        maybe("prefetch", 0.08, 1024, 1 << 14)
        maybe("emit", 0.3, "c", "obj")
        maybe("optimise", 0.2, "size", "speed")
        maybe("hook", 0.05, True)
        maybe("code_weights", 0.1, 20.0, 1e6)
        maybe("ram", 0.08, int(largest * rng.uniform(3.0, 8.0)) + 4096)
    if target in _MEMORIES and rng.random() < 0.4:
        fast, slow = _MEMORIES[target]
        options["memory"] = (f"{fast}={int(largest * rng.uniform(0.3, 3.0)) + 64}:0.5", f"{slow}={1 << 20}:4")
        maybe("objective", 0.3, "bytes")
    return options
