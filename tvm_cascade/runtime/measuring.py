"""The place of a request's measurements: this machine, or the RPC tracker's servers."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tvm_cascade.errors import MissingToolError, UsageError
from tvm_cascade.request import SearchRequest
from tvm_cascade.runtime.bench import Bench, LocalBench


def refuse_idle_farm(asked: SearchRequest) -> None:
    """Raise `UsageError` for farm options without a use, or without the companion options."""
    if asked.tracker is None:
        if asked.key is not None:
            raise UsageError("--key is of --tracker HOST:PORT: give that too")
        return
    if asked.key is None:
        raise UsageError("--tracker needs --key K: which of its servers to measure on")
    if not asked.measures:
        raise UsageError("--tracker measures: give --cost measured or --cost learned with it")


@contextmanager
def measuring(asked: SearchRequest) -> Iterator[Bench]:
    """Open the bench of a measuring request. Raises `UsageError` and `ToolError` without servers, `MissingToolError`
    without the requested local GPU.
    """
    if asked.tracker is None:
        try:
            gpu = asked.target.startswith("cuda")
            bench = LocalBench(target=asked.target, device=f"cuda:{asked.gpu}" if gpu else None)
        except MissingToolError as error:
            raise MissingToolError(error.tool, f"{error.remedy}; --cost analytic needs none of it") from None
        yield bench
        return
    from tvm_cascade.runtime.farm import Farm, Tracker
    from tvm_cascade.runtime.farm_bench import FarmBench

    host, _, port = asked.tracker.rpartition(":")
    kind = "cuda" if asked.target.startswith("cuda") else "cpu"
    with Farm(Tracker(host, int(port), str(asked.key), asked.parallel), device=kind) as farm:
        yield FarmBench(farm, asked.target)
