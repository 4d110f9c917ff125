"""`KernelForm`, the interface of a kernel form: a way to compute an operator, or a part, in one call.

A form tells the planner the possible tiles and their RAM (`footprint`), and builds the kernel for the tile chosen by a
plan (`build`). A plan runs an operator in one of five ways (`Way`); each form serves a single way, and several forms
can serve the same way (one-row kernels, several-row kernels). A form that cannot serve an operator returns the reason.
Every module in this package that defines `FORM` is a form (`schedules.forms.choose`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import ClassVar

from tvm_cascade.cascading.geometry import goes_by_pixels
from tvm_cascade.cascading.plan import Plan, Segment
from tvm_cascade.cores import KernelTarget
from tvm_cascade.footprints import KernelFootprints
from tvm_cascade.graph import Graph, Op, Tensor
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.kernels.computation import Computation
from tvm_cascade.schedules.kernels.kernel import RowKernel
from tvm_cascade.schedules.kernels.spec import OperatorSpec
from tvm_cascade.schedules.kernels.storage import CODED


class Way(Enum):
    """How a segment runs an operator: the result of a step."""

    ROWS = "by rows"  # a step makes a tile of whole rows, or the whole output
    PIXELS = "by pixels"  # some pixels of a row
    STRIPES = "in stripes"  # a row of a vertical stripe
    ACCUMULATING = "to sum up its input"  # a step adds some of the input, the last makes the whole output
    IN_PLACE = "over its input"  # the only step leaves the output in the bytes of the input


@dataclass(frozen=True)
class Site:
    """An operator with everything needed to build a kernel for it, independent of a plan."""

    graph: Graph  # as it was extracted, before planning
    op: Op
    computed: Computation
    core: KernelTarget | None  # the core to write fast kernels for; None: generic kernels, which run on every machine
    row: RowKernel  # the kernel of one row, or of the whole operator

    @property
    def spec(self) -> OperatorSpec:
        """Return the operator's kind, tensors, constants and attributes."""
        return self.computed.spec

    @property
    def scheduled(self) -> bool:
        """Return True if `row` comes from a performance schedule, not from the generic schedule."""
        return self.core is not None and self.row.scheduled

    @property
    def decodes(self) -> bool:
        """Return True if `row` decodes its weights in every call."""
        return self.row.storage.name == CODED

    @property
    def tensors(self) -> list[Tensor]:
        """Return the activations read by the operator, then the activations written."""
        return [self.graph.tensors[t] for t in (*self.op.inputs, *self.op.outputs)]


@dataclass(frozen=True)
class Use:
    """An operator in a plan's segment."""

    plan: Plan
    segment: Segment
    op: Op

    @cached_property
    def way(self) -> Way:
        """Return the way the segment runs the operator."""
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
        """Return for each stripe the columns `[x0, x1)` computed by the operator."""
        position = self.segment.ops.index(self.op.index)
        return [ranges[position] for ranges in self.segment.stripes]

    @property
    def tile_rows(self) -> int:
        """Return the rows computed by a step, at most all output rows."""
        return min(self.segment.tile.rows, self.plan.graph.tensors[self.op.outputs[0]].rows)


class KernelForm(ABC):
    """Base class of kernel forms: tells the planner which operators have this form, and builds the kernel."""

    way: ClassVar[Way]  # the way of running an operator that this form implements
    fallback: ClassVar[bool] = False  # tried after all forms that are no fallbacks

    def footprint(self, site: Site, known: KernelFootprints) -> KernelFootprints | str:
        """Return `known` with this form's fields filled in, or the reason why the operator at `site` has no such form.

        The planner uses a form only if the form's fields are set. Forms without a field, such as one-row kernels,
        return `known` unchanged.
        """
        return known

    @abstractmethod
    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        """Build the operator's kernel for its `use` in a plan, which asks for `way`; or return why this form has none."""
