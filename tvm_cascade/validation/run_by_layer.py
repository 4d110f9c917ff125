"""Comparison of every tensor of a compiled network with the reference, on the board that runs it: `run --by-layer`.

The network is compiled once more with all tensors of its operators as outputs, for the same core and board, and runs
on the same inputs. It keeps every tensor whole, so its memory plan is another: a faulty kernel or compiler shows at its
first tensor, and a fault of the memory plan alone shows as no difference at all. A board at a port is flashed with that
program, and with the project again at the end.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Mapping, Sequence
from math import ceil
from pathlib import Path

import numpy as np

from tvm_cascade.boards.board import Board
from tvm_cascade.checking.check import Check
from tvm_cascade.checking.compare_outputs import differs
from tvm_cascade.checking.layer_check import LayerCheck
from tvm_cascade.emit.board_files import board_place, find_board
from tvm_cascade.emit.image import Image, read_image, read_metadata
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.importers.cut_file import file_graph
from tvm_cascade.messages import printable
from tvm_cascade.plain_files import readable
from tvm_cascade.request import RunRequest
from tvm_cascade.runs.arrays import read_inputs
from tvm_cascade.runs.flash import choose_tool, flash_image
from tvm_cascade.runs.run_image import run_image

Arrays = Mapping[str, np.ndarray]
Progress = Callable[[str], None]


def require_own_model(folder: Path, asked: RunRequest) -> None:
    """Raise `UsageError` unless `--check` names the file that the project was compiled from, for one network and call."""
    if asked.check is None:
        raise UsageError("--by-layer compares with a reference: name the model's file by --check")
    if asked.frames is not None:
        raise UsageError("--by-layer compares one call: leave --frames out")
    if asked.port is not None:
        choose_tool(_board_at_port(read_image(folder), asked))  # refused here, before any work
    made_from = read_metadata(folder).get("model")
    own = hashlib.sha256(readable(asked.check).read_bytes()).hexdigest()
    if isinstance(made_from, dict) and made_from.get("sha256") != own:
        raise UsageError(
            f"{asked.check} is not the file that {folder} was compiled from ({printable(str(made_from.get('file')))}): "
            "compile it first"
        )


def check_layers(
    folder: Path,
    asked: RunRequest,
    given: str | Path | Arrays | None,
    compile: Callable[..., object],
    progress: Progress,
) -> tuple[LayerCheck, ...]:
    """Compare every tensor of the project in `folder` with the reference of `asked.check`, in execution order.

    `compile` is the API's. Raises `UsageError` for a bundle, a sliding window, or a network without named tensors.
    """
    image = read_image(folder)
    if image.several or any(spec.window for spec in image.networks[0].interface.inputs):
        raise UsageError("--by-layer is for one network with whole inputs: run each project, compiled without --hop")
    if image.networks[0].interface.states:
        raise UsageError("--by-layer is for networks without states")
    assert asked.check is not None
    kinds = {str(o["name"]): str(o["kind"]) for o in read_metadata(folder)["operators"]}
    computed = set(file_graph(asked.check, readable(asked.check).read_bytes()).computed)
    names = [name for name in kinds if name in computed]
    if not names:
        raise UsageError(f"no operator of {image.name} has a tensor that {asked.check.name} names")
    feeds = read_inputs(image, given)
    options = _options(image, asked)
    try:
        return _by_parts(asked, feeds, names, kinds, options, compile, progress)
    finally:
        if asked.port is not None:
            progress(f"{image.name}: flashing the project again")
            flash_image(image, _board_at_port(image, asked))


def _board_at_port(image: Image, asked: RunRequest) -> Board:
    return find_board(image.folder, asked.board or image.board)


def _by_parts(
    asked: RunRequest,
    feeds: Arrays,
    names: Sequence[str],
    kinds: Mapping[str, str],
    options: Mapping[str, object],
    compile: Callable[..., object],
    progress: Progress,
) -> tuple[LayerCheck, ...]:
    """Compare all tensors at once, or in parts where the memory is too small."""
    found: list[LayerCheck] = []
    parts = [names]
    assert asked.check is not None
    while parts:
        part = parts.pop(0)
        progress(f"{asked.check.stem}: comparing {len(part)} tensors with the reference")
        try:
            found += _compared(asked, feeds, part, kinds, options, compile, progress)
        except InfeasibleError as error:
            if len(part) == 1:
                found.append(LayerCheck(part[0], kinds[part[0]], None, None, 0, 0))
            else:
                size = ceil(len(part) / (1 + ceil(error.needed / max(error.available, 1))))
                parts[:0] = [part[k : k + size] for k in range(0, len(part), size)]
    return tuple(found)


def _options(image: Image, asked: RunRequest) -> dict[str, object]:
    """Return the options of `compile` for the same core, board and kernels."""
    network = image.networks[0]
    options: dict[str, object] = {"target": image.target.name, "optimise": image.optimise, "layerwise": True}
    if asked.port is not None:
        board = board_place(image.folder, asked.board or image.board)
    else:
        board = image.target.default_board if asked.board in (None, "host") else asked.board
    if image.target.name != "host":
        options |= {"board": board, "emit": "obj" if network.objects else "c"}
    if network.interface.cut.start:
        options["from_"] = network.interface.cut.start
    return options


def _compared(
    asked: RunRequest,
    feed: Arrays,
    names: Sequence[str],
    kinds: Mapping[str, str],
    options: Mapping[str, object],
    compile: Callable[..., object],
    progress: Progress,
) -> list[LayerCheck]:
    """Compile the network with the outputs `names`, run it on `feed` and compare each output."""
    assert asked.check is not None
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-") as place:
        folder = Path(place) / "project"
        for stored_io in (False, True):
            compile(asked.check, output=folder, until=list(names), stored_io=stored_io, **options)
            image = read_image(folder)
            own = image.networks[0].inputs
            if all(str(feed[s.name].dtype) == s.dtype for s in own if s.name in feed):
                break
        feed = {spec.name: feed[spec.name] for spec in own}
        board = asked.board if asked.board == "host" else None
        if asked.port is not None:
            progress(f"{image.name}: flashing the program that keeps {len(names)} tensors")
            flash_image(image, find_board(folder, image.board))
        running = RunRequest(board=board, port=asked.port, timeout=asked.timeout)
        report = run_image(folder, running, feed, lambda _line: None)
        progress(f"{image.name}: running the reference on {asked.check.name}")
        check = Check(image, asked.check, [feed])
        verdicts = check.by_output(report.outputs)
    found = []
    for name, (want, have, verdict) in zip(names, verdicts, strict=True):
        found.append(LayerCheck(name, kinds[name], verdict.match, verdict.gap, _differing(want, have), want.size))
    return found


def _differing(want: np.ndarray, have: np.ndarray) -> int:
    """Count the elements that differ; of floats those by more than reassociated sums explain."""
    return want.size if want.shape != have.shape else int(np.count_nonzero(differs(want, have)))
