"""The source of an ONNX model: the graph behind its tensor names, and the operator names for refusals."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from tvm_cascade.importers.cut import FileGraph, Remedy
from tvm_cascade.importers.onnx.cut import graph_of, until_before

SIZES_REMEDY = ": write sizes that the model computes as constants (onnxsim, or torch.onnx.export with dynamo=True)"


class Origin(Protocol):
    """The file behind an ONNX model."""

    @property
    def graph(self) -> FileGraph:
        """Return the file's graph."""
        ...

    @property
    def returned(self) -> Sequence[str]:
        """Return the output names."""
        ...

    @property
    def sizes_remedy(self) -> str:
        """Return the remedy for computed sizes, as the end of a sentence."""
        ...

    def kinds(self, model: Any, nodes: Collection[int]) -> list[str]:
        """Return the file's operator names for these `model` nodes."""
        ...

    def remedy(self, model: Any, nodes: Collection[int]) -> Remedy:
        """Return the remedy that cuts the file's network before these `model` nodes."""
        ...


@dataclass(frozen=True, slots=True)
class OnnxFile:
    """An ONNX file, with its model."""

    given: Any
    sizes_remedy: str = SIZES_REMEDY

    @property
    def graph(self) -> FileGraph:
        """Return the file's graph."""
        return graph_of(self.given)

    @property
    def returned(self) -> Sequence[str]:
        """Return the output names."""
        return [output.name for output in self.given.graph.output]

    def kinds(self, model: Any, nodes: Collection[int]) -> list[str]:
        """Return what the model calls these operators."""
        return list(dict.fromkeys(model.graph.node[k].op_type for k in nodes))

    def remedy(self, model: Any, nodes: Collection[int]) -> Remedy:
        """Return the remedy that cuts the file's network before these `model` nodes."""
        return until_before(self.given, model, nodes)
