"""The networks of IOS's evaluation, by name: how each is made, and its scheduling unit."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import tvm

from tvm_cascade.staging.program.graph import StageGraph, stage_graph
from tvm_cascade.testing.zoo import nasnet, randwire_files
from tvm_cascade.testing.zoo.inception import inception_v3
from tvm_cascade.testing.zoo.squeezenet import squeezenet

Row = dict[str, object]
NETWORKS: dict[str, tuple[Callable[[], tvm.IRModule], str]] = {
    "inception_v3": (inception_v3, "fused"),
    "squeezenet": (squeezenet, "fused"),
    "nasnet": (lambda: nasnet.network("float32").mod, "sepconv"),
}


def randwire(folder: Path) -> tuple[Callable[[], tvm.IRModule], str]:
    """RandWire small (78 channels) from the authors' edge lists somewhere in a folder."""
    files = {path.name: path for path in sorted(folder.rglob("randwire_*.txt"))}
    stages = [randwire_files.drop_sink(*randwire_files.read_edges(files["randwire_1.txt"]))]
    stages += [randwire_files.read_edges(files[f"randwire_ws-32-4-0.75-{k}.txt"]) for k in (3, 4, 5)]
    return lambda: randwire_files.network(stages, channels=78), "sepconv"


def read(name: str) -> tuple[StageGraph, str]:
    """A network of the zoo and its scheduling unit."""
    make, unit = NETWORKS[name]
    return stage_graph(make()), unit
