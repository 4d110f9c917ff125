"""A plan that its validator refuses is not compiled: one message, nothing written."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tvm_cascade import api, pipeline
from tvm_cascade.errors import ValidationError
from tvm_cascade.testing.builder import Net


def test_a_wrong_plan_is_not_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planned = pipeline.plan_network

    def with_a_shorter_ring(*args: Any, **named: Any) -> Any:
        made = planned(*args, **named)
        tensors, storages = made.plan.graph.tensors, list(made.plan.storages)
        ring = next(s for s in storages if s.root is None and 1 < s.height < (tensors[s.tensor].rows or 1))
        storages[ring.tensor] = replace(ring, height=ring.height - 1)
        return replace(made, plan=replace(made.plan, storages=tuple(storages)))

    net = Net("int8", seed=2)
    x = net.conv(net.conv(net.input((1, 24, 24, 3)), 8, kernel=3), 8, kernel=3)
    mod = net.finish(net.conv(x, 4, kernel=3, stride=4))
    monkeypatch.setattr(pipeline, "plan_network", with_a_shorter_ring)
    with pytest.raises(ValidationError, match=r"not compiled.*--layerwise"):
        api.compile(mod, target="host", output=tmp_path / "p", granularity="row")
    assert not list(tmp_path.iterdir())
