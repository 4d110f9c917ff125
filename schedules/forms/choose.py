"""Registry of kernel forms: announces an operator's forms to the planner, and builds the kernels of a finished plan."""

from __future__ import annotations

import importlib
import logging
import pkgutil
from collections.abc import Sequence
from functools import cache

from tvm_cascade.cascading.plan import Plan
from tvm_cascade.errors import ValidationError
from tvm_cascade.footprints import ROW_KERNEL_ONLY, KernelFootprints
from tvm_cascade.schedules import forms as room
from tvm_cascade.schedules.driver.calls import BuiltKernel
from tvm_cascade.schedules.forms.form import KernelForm, Site, Use, Way
from tvm_cascade.schedules.kernels.pitch import pitched

LOG = logging.getLogger("tvm_cascade")


@cache
def forms() -> tuple[KernelForm, ...]:
    """Collect every module's `FORM` in this package, in module name order, fallbacks last."""
    modules = [importlib.import_module(f"{room.__name__}.{m.name}") for m in pkgutil.iter_modules(room.__path__)]
    found: list[KernelForm] = [m.FORM for m in modules if hasattr(m, "FORM")]
    return tuple(sorted(found, key=lambda form: form.fallback))


def footprints_of(site: Site) -> KernelFootprints:
    """Collect the kernel forms the planner may use for an operator besides one-row kernels, with their RAM."""
    known = ROW_KERNEL_ONLY
    for form in forms():
        found = form.footprint(site, known)
        if isinstance(found, str):
            LOG.debug("%s: not planned %s by %s: %s", site.op.name, form.way.value, type(form).__name__, found)
        else:
            known = found
    return known


def kernel_of(site: Site, use: Use) -> BuiltKernel:
    """Build the kernel by the first form able to run an operator as a plan does. Raises `ValidationError` without such
    a form.
    """
    reasons: list[str] = []
    for form in forms():
        if form.way is use.way:
            built = form.build(site, use)
            if not isinstance(built, str):
                return _written_apart(built, use)
            reasons.append(built)
    why = f"{site.op.name} was planned {use.way.value} and has no such kernel: {'; '.join(reasons)}"
    raise ValidationError(why, [site.op.name])


def kernels_of_plan(plan: Plan, sites: Sequence[Site | None]) -> list[BuiltKernel | None]:
    """Build every operator's kernel for the segment's way of execution; `sites` and results are None for views."""
    chosen: list[BuiltKernel | None] = [None] * len(sites)
    for segment in plan.segments:
        for o in segment.ops:
            site = sites[o]
            chosen[o] = None if site is None else kernel_of(site, Use(plan, segment, plan.graph.ops[o]))
    return chosen


def _written_apart(built: BuiltKernel, use: Use) -> BuiltKernel:
    """Return the kernel; if the output is a part of a join, changed to write pixels `Storage.pitch` bytes apart."""
    outputs = use.op.outputs
    storage = use.plan.storages[outputs[0]] if outputs else None
    if storage is None or not storage.pitch or use.way is Way.ACCUMULATING:
        return built
    tensor = use.plan.graph.tensors[outputs[0]]
    unit = tensor.row_bytes // tensor.columns
    return built.with_variants(pitched(v, unit, storage.pitch) for v in built.variants)
