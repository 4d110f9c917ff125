"""A folder for several batches: a network loaded for each, its rows proven independent, a schedule for each.

The program for the smallest batch that holds an input's rows runs it, with rows of zeros behind them. That is exact
because no row depends on another one, which `staging.program.rows` proves before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tvm_cascade import pipeline
from tvm_cascade.deploy.folder import Smaller, Staged
from tvm_cascade.errors import CascadeError, GraphError, UsageError
from tvm_cascade.measured.search import Found, search_by_description
from tvm_cascade.pipeline import Loaded, interface_of
from tvm_cascade.request import LoadRequest, StagesRequest
from tvm_cascade.search_monitor import SearchMonitor
from tvm_cascade.staging.program.network import stage_network
from tvm_cascade.staging.program.rows import require_same_rows, row_function


@dataclass(frozen=True)
class Batches:
    """A network for each batch, or length; the largest is the folder's main program."""

    loaded: Mapping[int, Loaded]  # ascending
    rows: tuple[str, ...] = ()  # names of the inputs that have rows; none: networks for lengths

    @property
    def largest(self) -> Loaded:
        """Return the network for the largest batch."""
        return self.loaded[max(self.loaded)]

    def smaller(self, request: StagesRequest, progress: Callable[[str], None]) -> Smaller:
        """Schedule the networks for all sizes but the largest."""
        programs: dict[int, Staged] = {}
        for size, loaded in list(self.loaded.items())[:-1]:
            progress(f"{loaded.name}: scheduling {'batch' if self.rows else 'length'} {size}")
            with SearchMonitor(request.time_limit):
                found: Found = search_by_description(loaded.mod, request)
            io = interface_of(loaded.mod, found.net.graph)
            best = found.schedule
            programs[size] = Staged(found.net, best.units, best.schedule, io, loaded.name, found.cost_model)
        return Smaller(programs, max(self.loaded), self.rows)


def load_batches(model: str | Path, reading: LoadRequest, request: StagesRequest) -> Batches:
    """Load a model file for every batch of the request, and prove that rows are independent.

    Every input whose size leads with 1 has rows. Raises `UsageError` for options that do not fit and for networks whose
    rows depend on one another, and the errors of `pipeline.load`.
    """
    require_fitting(request, "batch")
    one = pipeline.load(model, reading, unrolled=True)
    io = pipeline.interface_of(one.mod, stage_network(one.mod, request.target, request.precision).graph)
    if io.states:
        raise UsageError(
            "--batches pads a batch, and states are of one: emit a folder for each batch, with --input-shape"
        )
    specs = io.inputs
    names = {str(spec.file_name or spec.name): spec for spec in specs}
    rows = {name: tuple(spec.shape) for name, spec in names.items() if spec.shape and spec.shape[0] == 1}
    if not rows:
        raise UsageError("--batches: no input leads with a batch of 1")
    loaded: dict[int, Loaded] = {}
    functions = {}
    for batch in request.batches or ():
        shapes = dict(reading.input_shapes or {}) | {name: (batch, *shape[1:]) for name, shape in rows.items()}
        try:
            made = one if batch == 1 else pipeline.load(model, replace(reading, input_shapes=shapes), unrolled=True)
        except CascadeError as error:
            raise UsageError(f"--batches: the file cannot be loaded with a batch of {batch}: {error}") from None
        loaded[batch] = made
        functions[batch] = _rows(made, request, batch, [k for k, name in enumerate(names) if name in rows])
    try:
        require_same_rows(functions)
    except GraphError as error:
        raise _refused(str(error)) from None
    return Batches(loaded, tuple(str(names[name].name) for name in rows))


def _rows(loaded: Loaded, request: StagesRequest, batch: int, inputs: list[int]) -> tuple[str, ...]:
    net = stage_network(loaded.mod, request.target, request.precision)
    try:
        made = row_function(net, batch, inputs)
    except GraphError as error:
        raise _refused(str(error)) from None
    for spec in interface_of(loaded.mod, net.graph).outputs:
        if not spec.shape or spec.shape[0] != batch:
            raise _refused(
                f"output {spec.name} has the shape {list(spec.shape)}, which does not lead with {batch} rows"
            )
    return made


def _refused(reason: str) -> UsageError:
    return UsageError(
        f"--batches pads a batch, and it is not proven that no row would change: {reason}. Emit a folder for each batch, "
        "with --input-shape"
    )


def require_fitting(request: StagesRequest, kind: str) -> None:
    """Raise `UsageError` for options that a folder of several programs cannot have; `kind`: "batch" or "length"."""
    option = {"batch": "--batches", "length": "--lengths"}[kind]
    if request.batches and request.lengths:
        raise UsageError("--batches and --lengths are for different folders: give one of them")
    if request.emit is None:
        raise UsageError(f"{option} is of --emit DIR: give that too")
    if request.target.startswith("cuda"):
        raise UsageError(f"{option} is of --target llvm: for cuda emit a folder for each {kind}, with --input-shape")
    for name in ("batch", "load", "metaschedule"):
        if getattr(request, name) is not None:
            raise UsageError(f"--{name} is for one {kind}: leave it or {option} out")
    if request.cost != "analytic":
        raise UsageError(f"--cost {request.cost} measures one {kind}: leave it or {option} out")
