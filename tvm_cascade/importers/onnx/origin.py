"""What a model of ONNX was made of: the graph whose names its tensors bear, and how refusals speak of its operators."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm_cascade.importers.cut import FileGraph, Remedy
from tvm_cascade.importers.onnx.cut import graph_of, until_before

SIZES_REMEDY = ": write sizes that the model computes as constants (onnxsim, or torch.onnx.export with dynamo=True)"


class Origin(Protocol):
    """The file that a model of ONNX was made of."""

    @property
    def graph(self) -> FileGraph:
        """The graph of the file."""
        ...

    @property
    def returned(self) -> Sequence[str]:
        """The names of the outputs."""
        ...

    @property
    def sizes_remedy(self) -> str:
        """What helps where sizes are computed, as the end of a sentence."""
        ...

    def kinds(self, model: Any, nodes: Collection[int]) -> list[str]:
        """Return what the file calls the operators that these nodes of `model` compute, which was made of it."""
        ...

    def remedy(self, model: Any, nodes: Collection[int]) -> Remedy:
        """Return the remedy that cuts the network of the file in front of what these nodes of `model` compute."""
        ...


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """A file of ONNX itself: the model in it."""

    given: Any
    sizes_remedy: str = SIZES_REMEDY

    @property
    def graph(self) -> FileGraph:
        """The graph of the file."""
        return graph_of(self.given)

    @property
    def returned(self) -> Sequence[str]:
        """The names of the outputs."""
        return [output.name for output in self.given.graph.output]

    def kinds(self, model: Any, nodes: Collection[int]) -> list[str]:
        """Return what the model calls these operators."""
        return list(dict.fromkeys(model.graph.node[k].op_type for k in nodes))

    def remedy(self, model: Any, nodes: Collection[int]) -> Remedy:
        """Return the remedy that cuts the network of the file in front of what these nodes of `model` compute."""
        return until_before(self.given, model, nodes)
