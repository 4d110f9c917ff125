"""The folder for `stages --emit` and `optimize --emit`: refused before the search, written after."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tvm

from tvm_cascade.cost import AnalyticCost
from tvm_cascade.deploy.folder import Emission, Smaller, Staged, emission_of, emit_folder, require_free
from tvm_cascade.errors import UsageError
from tvm_cascade.measured.search import Found, priced_device
from tvm_cascade.parallel.problem import Options
from tvm_cascade.parallel.scheduler import schedule
from tvm_cascade.pipeline import Loaded, interface_of
from tvm_cascade.request import OptimizeRequest, SearchRequest, StagesRequest
from tvm_cascade.schema.searches import Emitted
from tvm_cascade.staging.program.cpu import threads
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.precision import FP32


def folder_of(request: SearchRequest, progress: Callable[[str], None]) -> EmittedFolder | None:
    """Return the folder asked for by a request; None if there is none. Raises `UsageError` for folder options without a
    folder.
    """
    given = [n for n in ("arch", "fast_math", "threads", "streams") if getattr(request, n)]
    measures_here = request.measures and request.tracker is None and request.target.startswith("cuda")
    if request.gpu and not measures_here:
        given.append("gpu")
    if isinstance(request, OptimizeRequest) and request.precision != FP32:
        given.append("precision")
    if request.winograd is not None:
        given.append("winograd")
    if isinstance(request, StagesRequest) and request.cost == "analytic" and request.target.startswith("llvm"):
        given = [name for name in given if name != "threads"]  # the schedule is priced with them
    if request.emit is None and given:
        raise UsageError(f"--{given[0].replace('_', '-')} is of --emit DIR: give that too")
    if request.emit is None:
        return None
    if request.winograd is not None and getattr(request, "cost", "") in ("measured", "learned"):
        raise UsageError(
            "--winograd changes kernels that --cost measured and learned time as they are: leave one of them out"
        )
    if getattr(request, "batch", None) not in (None, 1):
        raise UsageError("--emit writes the network as it is loaded: set the batch with --input-shape")
    return EmittedFolder(request, progress)


class EmittedFolder:
    """A folder for a search to emit. Raises on construction the errors of `emission_of` and `require_free`."""

    def __init__(self, request: SearchRequest, progress: Callable[[str], None]) -> None:
        assert request.emit is not None
        self.path: Path = request.emit
        self._request, self._progress = request, progress
        require_free(self.path)
        self._device = priced_device(request)
        measured = getattr(request, "cost", "") in ("measured", "learned")
        self.emission: Emission = emission_of(request, threads() if measured else self._device.units)

    def scheduled(self, mod: tvm.IRModule) -> Found:
        """Search a module's best schedule by the device's description, with the defaults of `stages`."""
        net, defaults = stage_network(mod, self._request.target, self._request.precision), StagesRequest()
        model = AnalyticCost(self._device, self._request.precision)
        options = Options(variant=defaults.variant, unit=defaults.unit, r=defaults.r, s=defaults.s)
        return Found(net, schedule(net.graph, model, options), model.name)

    def write(self, loaded: Loaded, found: Found, smaller: Smaller | None = None) -> Emitted:
        """Write the folder for the schedule of a network; inputs and outputs have the names of the network's file.

        `smaller`: the programs for smaller batches.
        """
        net, best = found.net, found.schedule
        io = interface_of(loaded.mod, net.graph)
        staged = Staged(net, best.units, best.schedule, io, loaded.name, found.cost_model)
        files = emit_folder(self.path, staged, self.emission, self._progress, smaller)
        return {"folder": str(self.path), "files": list(files), "architectures": self.emission.architectures}
