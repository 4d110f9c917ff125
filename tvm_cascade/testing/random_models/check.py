"""`check`: compile a random model, run it, and compare with the framework of its file format.

References are LiteRT's reference kernels, ONNX Runtime without optimizations, and torch. Integers are equal exactly. ONNX
defines quantized operators by floats, which ONNX Runtime computes with roundings of its own: where outputs differ, each
operator is compared alone, on the inputs that the compiled network gave it, and may differ only where the reference lies at a
tie.
"""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

import tvm_cascade
from tvm_cascade import pipeline
from tvm_cascade.cascading import validate
from tvm_cascade.cascading.schedule_bound import bound_of
from tvm_cascade.cores import KernelTarget
from tvm_cascade.errors import CascadeError, InfeasibleError, ToolError, ValidationError
from tvm_cascade.messages import last_line
from tvm_cascade.passes.candidates.candidate import KernelSource
from tvm_cascade.request import PlanRequest
from tvm_cascade.testing.forked import CRASH, HANG, PASS, REFUSED, WRONG, Outcome, forked
from tvm_cascade.testing.host_check import run_calls, run_plan
from tvm_cascade.testing.random_models.model import RandomModel, largest_scale
from tvm_cascade.testing.random_models.onnx_file import BIASES_STORED_SINCE, onnx_bytes
from tvm_cascade.testing.random_models.operators import Operators
from tvm_cascade.testing.random_models.options import random_options
from tvm_cascade.testing.random_models.references import Disputed, reference, runtime

Compute = Callable[["Case", Path, Sequence[np.ndarray]], list[np.ndarray]]
FAULTS = (WRONG, CRASH, HANG)
DISPUTED = "reference"  # the reference is known to be wrong, or takes no such model; the reason begins with the rule
SECONDS = 120  # of processor time for one network
_CAP = re.compile(r"cap: needs (\d+) bytes, ([1-9]\d*) available")  # of a refusal
_FLOAT = 2e-5  # of the largest value: sums are added in another order
_LONGEST = 200  # characters of the reason of a refusal
_TIE = 2e-3  # of a step: the distance from a tie that float32 cannot tell


@dataclass(frozen=True, slots=True)
class Case:
    """A model, the machine that it is compiled for, and the options of `tvm_cascade.compile`."""

    model: RandomModel | Operators
    target: str = "host"
    options: Mapping[str, Any] = field(default_factory=dict)
    operators: int = 0  # independent ones that were drawn; 0: a graph
    parts: tuple[int, ...] = ()  # of them that are left; none: all
    planned: bool = False  # run as planned, in this process; else compiled as users do

    @classmethod
    def drawn(cls, model: RandomModel | Operators, target: str) -> Case:
        """Return the case whose options are drawn by the model's seed."""
        return cls(model, target, random_options(model.seed, model, target))

    def command(self) -> str:
        """Return the command that checks it again."""
        m, many = self.model, f" --operators {self.operators}" if self.operators else ""
        parts = f" --parts {' '.join(map(str, self.parts))}" if self.parts else ""
        where = f"{m.seed} --door {m.door} --form {m.form} --opset {m.opset} --target {self.target}"
        way = " --planned" if self.planned else ""
        return f"python -m tvm_cascade.testing.random_models {where}{many}{parts}{way}"


class Stopped(Exception):
    """A check did not end in its time."""


def check(case: Case, until: float = math.inf) -> Outcome:
    """Check one case in a process of its own; see `examined`. Raises `Stopped` at `until`, of the monotonic clock."""
    for _, outcome in forked([case], examined, seconds=SECONDS + 3 * case.operators, until=until):
        return outcome
    raise Stopped


def examined(case: Case, compute: Compute | None = None) -> Outcome:
    """Return whether the network computes what the reference computes, is refused in a sentence, or is at fault.

    `compute` runs it: by default as the case says, `compiled_outputs` or `planned_outputs`.
    """
    with tempfile.TemporaryDirectory() as folder:
        try:
            default = planned_outputs if case.planned else compiled_outputs
            found = _examined(case, compute or default, Path(folder))
        except Disputed as error:
            found = Outcome(DISPUTED, str(error))
        except InfeasibleError as error:
            found = Outcome(REFUSED, f"cap: {error}")
        except (ToolError, ValidationError) as error:
            found = Outcome(CRASH, f"{type(error).__name__}: {error}")
        except CascadeError as error:
            found = Outcome(CRASH if "Check failed" in str(error) or "\n" in str(error) else REFUSED, str(error))
        except Exception as error:  # any that is not the project's own is a fault
            found = Outcome(CRASH, f"{type(error).__name__}: {last_line(error)}")
        return Outcome(found.verdict, " ".join(found.reason.replace(f"{folder}/", "").split())[-400:])


def smallest(case: Case, until: float = math.inf) -> tuple[int, Outcome]:
    """Return how many operators the smallest prefix of a case's network has that is still at fault, and its outcome."""
    model = case.model
    assert isinstance(model, RandomModel)
    for count in range(1, len(model.steps) + 1):
        outcome = check(replace(case, model=model.prefix(count)), until)
        if outcome.verdict in FAULTS:
            return count, outcome
    return len(model.steps), Outcome(PASS)


def apart(case: Case, until: float = math.inf) -> Iterator[tuple[Case, Outcome]]:
    """Return outcomes of the independent operators of a case: those that pass together, others one by one, by halves. What is
    refused when it is read is left out first, and what needs more than the RAM of its board is cut to files that fit.

    A fault that none of its parts has alone is that of all its operators, and so is one that cannot be taken apart before
    `until`; else raises `Stopped`.
    """
    outcome, count = check(case, until), case.model.parts
    if outcome.verdict == PASS or count == 1:
        yield case, outcome
        return
    parts, found = case.parts or tuple(range(count)), []
    over = _CAP.match(outcome.reason) if outcome.verdict == REFUSED else None
    left_out = _left_out(case, until) if outcome.verdict not in FAULTS and not over else {}
    if left_out:
        for k, refusal in left_out.items():
            yield replace(case, model=case.model.subset([k]), parts=(parts[k],)), refusal
        kept = [k for k in range(count) if k not in left_out]
        if kept:
            yield from apart(replace(case, model=case.model.subset(kept), parts=tuple(parts[k] for k in kept)), until)
        return
    try:
        for some in _cut(count, math.ceil(1.5 * int(over[1]) / int(over[2])) if over else 2):
            kept = tuple(parts[k] for k in some)
            found += apart(replace(case, model=case.model.subset(some), parts=kept), until)
    except Stopped:
        if outcome.verdict not in FAULTS:
            raise
        found = []
    if outcome.verdict in FAULTS and not any(part.verdict in FAULTS for _, part in found):
        found = [(case, outcome)]
    yield from found


def _cut(count: int, pieces: int) -> Iterator[range]:
    """Yield `count` indices in pieces of like size: at least two, at most one for each."""
    pieces = min(max(pieces, 2), count)
    ends = [count * k // pieces for k in range(pieces + 1)]
    yield from (range(first, last) for first, last in pairwise(ends))


def _left_out(case: Case, until: float) -> dict[int, Outcome]:
    """Return outcomes of the operators that the reference or the importer refuses."""
    for _, said in forked([case], _refusals, seconds=SECONDS + 3 * case.operators, until=until):
        if said.verdict == PASS:
            return {k: Outcome(verdict, reason) for k, verdict, reason in json.loads(said.reason)}
    return {}


def _refusals(case: Case) -> Outcome:
    def read(one: Case, path: Path, _: Sequence[np.ndarray]) -> list[np.ndarray]:
        pipeline.load(path)
        raise _Read

    refused = []
    for k in range(case.model.parts):
        outcome = examined(replace(case, model=case.model.subset([k])), read)
        if outcome.verdict in (DISPUTED, REFUSED):
            refused.append((k, outcome.verdict, outcome.reason[:_LONGEST]))
    return Outcome(PASS, json.dumps(refused))


class _Read(Exception):
    """A file was read."""


def _examined(case: Case, compute: Compute, folder: Path) -> Outcome:
    os.environ["TVM_CASCADE_CACHE_DIR"] = f"{folder}/cache"
    wanted = reference(case.model)
    path = folder / f"m.{case.model.door}"
    path.write_bytes(wanted.file)
    try:
        got = compute(case, path, wanted.inputs)
    except InfeasibleError as error:  # what it says is needed has to be possible
        if "sram" not in case.options or "ram" in case.options or "memory" in case.options:
            raise
        got = compute(replace(case, options={**case.options, "sram": error.needed}), path, wanted.inputs)
    gap = difference(got, wanted.outputs)
    if gap and isinstance(case.model, RandomModel) and not case.model.quantized:
        gap = difference(with_ties(case.model, got, wanted.outputs), wanted.outputs)
        if gap and _rounding_decides(case.model):
            raise Disputed(f"rounding alone decides a norm or a place: {gap}")
    elif gap and isinstance(case.model, RandomModel) and case.model.door == "onnx":
        gap = _beyond_ties(case.model, compute, got, wanted.inputs, folder)
    return Outcome(WRONG, gap) if gap else Outcome(PASS)


def compiled_outputs(case: Case, path: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Compile a file, run it, and return the outputs in the file's order.

    Raises `ValidationError` where what ran is not what was planned.
    """
    project = path.with_suffix("")
    made = tvm_cascade.compile(path, target=case.target, output=project, **case.options)
    if case.options.get("sram") is not None and made.peak_bytes > case.options["sram"]:
        raise ValidationError(f"{made.peak_bytes} bytes planned under a cap of {case.options['sram']}")
    interface = json.loads((project / "metadata.json").read_text())["project"]["interface"]
    given = {port["name"]: a.astype(port["dtype"]) for port, a in zip(interface["inputs"], inputs, strict=True)}
    report = tvm_cascade.run(project, inputs=given)
    if not report.ok:
        touched = f"{report.arena_high_water_bytes} of {report.arena_bytes} bytes touched"
        work = f"{report.executed_macs} of {report.planned_macs} work done"
        raise ValidationError(f"{touched}, {work}, equals host: {report.equals_host}")
    return [np.asarray(a) for a in report.outputs.values()]


def planned_outputs(case: Case, path: Path, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Plan a file and run the plan in this process, by kernels that are built quickly; return the outputs in the file's order.

    Raises `ValidationError` where the plan is wrong, or what ran is not what was planned.
    """
    asked = PlanRequest.of(dict(case.options))
    planned = pipeline.plan(pipeline.load(path), asked, KernelSource(KernelTarget()))
    validate(planned.plan)
    if (bound := bound_of(planned.plan)) > planned.plan.peak:
        raise ValidationError(f"a bound of {bound} bytes for any schedule, and a plan of {planned.plan.peak}")
    io = planned.prepared.io
    given = [a.astype(spec.dtype) for a, spec in zip(inputs, io.own_inputs, strict=True)]
    if io.states:
        return list(run_calls(planned.candidate.prepared, planned.plan, io, [given])[0])
    run = run_plan(planned.candidate.prepared, planned.plan, given)
    if run.executed_macs != planned.plan.macs or run.arena_high_water > planned.plan.peak:
        raise ValidationError(f"{run.executed_macs} of {planned.plan.macs} work, {run.arena_high_water} bytes touched")
    return list(run.outputs)


def difference(got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> str:
    """Return how outputs differ; nothing where they agree: integers exactly, floats within `_FLOAT` of the largest."""
    if len(got) != len(wanted):
        return f"{len(got)} outputs for {len(wanted)}"
    gaps = (_gap(g, w) for g, w in zip(got, wanted, strict=True))
    return next((f"output {k}: {gap}" for k, gap in enumerate(gaps) if gap), "")


def _gap(got: np.ndarray, want: np.ndarray) -> str:
    narrowed = want.dtype.name == "int64" and got.dtype.name == "int32"
    if got.shape != want.shape and not got.size == want.size == 1:
        return f"shape {list(got.shape)} for {list(want.shape)}"
    if got.dtype != want.dtype and not narrowed:
        return f"{got.dtype} for {want.dtype}"
    a, b = got.reshape(-1), want.reshape(-1)
    same = a == b
    if want.dtype.kind == "f":
        reach = _FLOAT * max(float(np.abs(b[np.isfinite(b)]).max(initial=0.0)), 1e-3)
        same = np.isclose(a, b, _FLOAT, reach, equal_nan=True)
    if same.all():
        return ""
    first = int(np.argmax(~same))
    return f"{int((~same).sum())} of {same.size} differ, at {first} {a[first]} for {b[first]}"


def with_ties(model: RandomModel, got: Sequence[np.ndarray], wanted: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Return outputs with the wanted places of largest floats where those found are as large within `_FLOAT`."""
    found, choices = list(got), {t: step for step in model.steps if step.kind == "argmax" for t in step.outputs}
    for k, (t, want) in enumerate(zip(model.outputs, wanted, strict=True)):
        if t in choices and found[k].shape == want.shape:
            axis, (values,) = choices[t].attrs["axis"], reference(replace(model, outputs=choices[t].inputs)).outputs
            largest, taken = (
                np.take_along_axis(values, np.expand_dims(places, axis), axis).squeeze(axis)
                for places in (want, found[k])
            )
            tied = largest - taken <= _FLOAT * float(np.abs(values).max())
            found[k] = np.where(tied, want, found[k]).astype(found[k].dtype)
    return found


def _rounding_decides(model: RandomModel) -> bool:
    """Test whether a norm divides elements by a spread within the rounding of their mean, or a row is looked up by the place
    of a largest element that is hardly larger than the next, or as large.
    """
    for step in model.steps:
        if step.kind not in ("layer_norm", "group_norm", "lookup"):
            continue
        (values,) = reference(replace(model, outputs=step.inputs)).outputs
        if step.kind == "lookup":
            ahead = np.diff(np.sort(np.moveaxis(values, step.attrs["axis"], 0), axis=0)[-2:], axis=0)
            found = ahead <= _FLOAT * np.abs(values).max()
        else:
            end = step.attrs.get("axis", 1)
            rows = values.reshape(math.prod(values.shape[:end]) * step.attrs.get("groups", 1), -1)
            found = np.abs(rows).max(1) * 5e-7 > _FLOAT * np.sqrt(rows.var(1) + 1e-5)
        if found.any():
            return True
    return False


def _beyond_ties(
    model: RandomModel, compute: Compute, got: Sequence[np.ndarray], inputs: Sequence[np.ndarray], folder: Path
) -> str:
    """Return how a quantized ONNX network differs beyond ties: one of its operators from the reference on the same inputs, or
    the network from the same with all operands as outputs, layer by layer."""
    whole = model.exposed()
    path = folder / "exposed.onnx"
    path.write_bytes(onnx_bytes(whole))
    found = compute(Case(whole, options={"layerwise": True}), path, inputs)
    values = dict(zip(whole.outputs, found, strict=True))
    values.update({t: _quantized(model, t, a) for t, a in zip(model.inputs, inputs, strict=True)})
    for step in model.steps:
        gap = _step_gap(model, step, values)
        if gap:
            return f"{step.kind}: {gap}"
    exact = [np.array_equal(a, values[t]) for a, t in zip(got, model.outputs, strict=True)]
    return (
        "" if all(exact) else f"outputs {[k for k, e in enumerate(exact) if not e]} differ from the same layer by layer"
    )


def _quantized(model: RandomModel, t: int, real: np.ndarray) -> np.ndarray:
    """Return the real numbers that an input is stored as."""
    operand, info = model.operands[t], np.iinfo(model.stored_type)
    stored = np.clip(np.round(real / np.float32(operand.scale)) + operand.zero_point, info.min, info.max)
    return ((stored - operand.zero_point) * np.float32(operand.scale)).astype("float32")


def _bias_rounding(model: RandomModel, step: Any) -> float:
    """Return half a step of a layer's sum where its bias is float: it is stored in whole steps (`importers.biases`)."""
    if not step.attrs.get("bias") or model.opset >= BIASES_STORED_SINCE:
        return 0.0
    return model.operands[step.inputs[0]].scale * largest_scale(step.attrs["terms"]) / 2


def _step_gap(model: RandomModel, step: Any, values: Mapping[int, np.ndarray]) -> str:
    """Return how one operator differs from the reference on the same inputs, away from ties."""
    alone = model.alone(step)
    inputs = [values[t] for t in alone.inputs]
    for t, want, real in zip(step.outputs, *runtime(alone, inputs), strict=True):
        operand = model.operands[t]
        away = np.ones(want.shape, bool)
        if operand.kind == "real":
            steps = real.astype("float64") / np.float32(operand.scale)
            away = np.abs(steps - np.floor(steps) - 0.5) > _TIE + _bias_rounding(model, step) / operand.scale
        wrong = (values[t] != want) & away
        if operand.kind == "real":
            wrong |= np.abs(values[t] - want) > 1.5 * operand.scale
        if wrong.any():
            where = int(np.argmax(wrong))
            ours, theirs, exact = (a.reshape(-1)[where] for a in (values[t], want, real))
            told = f", unrounded {exact / operand.scale:.5f} steps" if operand.kind == "real" else ""
            return f"{int(wrong.sum())} of {wrong.size} differ, {ours} for {theirs}{told}"
    return ""
