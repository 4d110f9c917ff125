"""A folder for several lengths, such as of a sequence: a network loaded for each, with a schedule of its own.

Nothing is padded: an attention without a mask reads every token. The program runs that was made for the shapes given.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from tvm_cascade import pipeline
from tvm_cascade.deploy.batches import Batches, require_fitting
from tvm_cascade.errors import CascadeError, OpenSizesError, UsageError
from tvm_cascade.request import LoadRequest, StagesRequest
from tvm_cascade.staging.program.network import stage_network


def load_lengths(model: str | Path, reading: LoadRequest, request: StagesRequest) -> Batches:
    """Load a model file for every length of the request.

    A length is every size that the file leaves open and `reading` does not give, but for leading sizes, which are 1. Raises
    `UsageError` for options that do not fit and for files without such sizes, and the errors of `pipeline.load`.
    """
    require_fitting(request, "length")
    given = dict(reading.input_shapes or {})
    try:
        pipeline.load(model, reading, unrolled=True)
    except OpenSizesError as error:
        shapes = error.shapes
    else:
        raise UsageError(
            "--lengths: the file leaves no size open behind the batch, or --input-shape gives all: leave it out"
        )
    loaded = {}
    for length in request.lengths or ():
        sized = {
            name: tuple(d if isinstance(d, int) else length if k else 1 for k, d in enumerate(shape))
            for name, shape in shapes.items()
        }
        try:
            loaded[length] = pipeline.load(model, replace(reading, input_shapes=given | sized), unrolled=True)
        except CascadeError as error:
            raise UsageError(f"--lengths: the file cannot be loaded with a length of {length}: {error}") from None
    mod = loaded[max(loaded)].mod
    if pipeline.interface_of(mod, stage_network(mod, request.target, request.precision).graph).states:
        raise UsageError("--lengths has a program for each length, and states are of one: fix it by --input-shape")
    return Batches(loaded)
