"""`KernelForm`, the interface of a form of kernel: a way of computing an operator, or a part of it, in one call.

A form tells the planner which tiles it can compute of an operator and how much RAM that takes (`footprint`), and builds the
kernel for the tile that a plan has chosen (`build`). A plan runs an operator in one of five ways (`Way`); each form serves
one of them, and several forms can serve the same one (kernels of one row, kernels of several). A form that cannot serve an
operator returns the reason. Every module of this package that defines `FORM` is a form (`schedules.forms.choose`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import ClassVar

import numpy as np

from tvm_cascade.cascading.geometry import goes_by_pixels
from tvm_cascade.cascading.plan import Plan, Segment
from tvm_cascade.cores import KernelTarget
from tvm_cascade.graph import Graph, KernelFootprints, Op, Tensor
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.kernels.access import RowAccess
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec, read_spec
from tvm_cascade.schedules.tir import PrimFunc


class Way(Enum):
    """How a segment runs an operator: what its steps make."""

    ROWS = "by rows"  # a step makes a tile of whole rows, or the whole output
    PIXELS = "by pixels"  # some pixels of a row
    STRIPES = "in stripes"  # a row of a vertical stripe
    ACCUMULATING = "to sum up its input"  # a step adds some of the input, the last makes the whole output
    IN_PLACE = "over its input"  # the only step leaves the output in the bytes of the input


@dataclass(frozen=True)
class Site:
    """An operator as forms of kernels see it."""

    graph: Graph  # as it was extracted
    op: Op
    func: PrimFunc  # parameters: activations, constants, outputs
    constants: tuple[np.ndarray, ...]
    access: RowAccess
    row: RowKernel  # the kernel of a row, or of the whole operator
    pixels: RowKernel | None  # the generic kernel of parts of rows, where there is one
    core: KernelTarget | None  # what performance schedules may rely on; None asks for kernels that run on every machine

    @cached_property
    def spec(self) -> OperatorSpec:
        """What the operator computes."""
        return read_spec(self.func, self.constants)

    @property
    def scheduled(self) -> bool:
        """Whether a performance schedule serves the operator."""
        return self.core is not None and self.row.rule != "generic"

    @property
    def tensors(self) -> list[Tensor]:
        """The activations that the operator reads, then those that it writes."""
        return [self.graph.tensors[t] for t in (*self.op.inputs, *self.op.outputs)]


@dataclass(frozen=True)
class Use:
    """An operator where a plan runs it."""

    plan: Plan
    segment: Segment
    op: Op

    @cached_property
    def way(self) -> Way:
        """What the segment asks for."""
        if self.op.index in self.segment.accumulating:
            return Way.ACCUMULATING
        if self.op.index in self.segment.in_place:
            return Way.IN_PLACE
        if self.segment.stripes:
            return Way.STRIPES
        pixels = self.segment.tile.by_pixels and goes_by_pixels(self.plan.graph, self.op.index)
        return Way.PIXELS if pixels else Way.ROWS

    @property
    def columns(self) -> Sequence[tuple[int, int]]:
        """In stripes: the columns `[x0, x1)` of every stripe."""
        position = self.segment.ops.index(self.op.index)
        return [ranges[position] for ranges in self.segment.stripes]

    @property
    def tile_rows(self) -> int:
        """Rows of a step, those of the output at most."""
        return min(self.segment.tile.rows, self.plan.graph.tensors[self.op.outputs[0]].rows)


class KernelForm(ABC):
    """A form of kernel: how it is announced to the planner, and how it is built."""

    way: ClassVar[Way]  # which it serves
    fallback: ClassVar[bool] = False  # asked after the forms that serve fewer operators

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        """`known` with the fields of this form filled in, or the reason why the operator at `site` has no such form.

        The fields are bytes of RAM and flags; the planner uses no form that they do not announce. Forms that every operator
        has, such as kernels of rows, have no field.
        """
        return known

    @abstractmethod
    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        """The operator's kernel where a plan asks for `way`, or the reason why this form has none."""
