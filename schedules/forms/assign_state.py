"""The kernel for writing a state: copies the new value over the state's bytes (`passes.states`)."""

from __future__ import annotations

from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.forms.rows import RowSteps


class AssignState(KernelForm):
    """The form of operators with a target (`graph.Op.target`), which run once and alone."""

    way = Way.IN_PLACE

    def build(self, site: Site, use: Use) -> BuiltKernel | str:
        return "it writes no state" if use.op.target is None else RowSteps((site.row,))


FORM = AssignState()
