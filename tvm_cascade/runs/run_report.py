"""`RunReport`: an inference's measurements and output comparisons, as text and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from tvm_cascade.checking.check import Checked
from tvm_cascade.checking.compare_outputs import FLOAT_TOLERANCE
from tvm_cascade.checking.layer_check import LayerCheck, first_difference, layer_lines
from tvm_cascade.messages import short_name
from tvm_cascade.report.cost import Cost
from tvm_cascade.schema.filled import filled
from tvm_cascade.schema.projects import LayerComparison, Run
from tvm_cascade.sizes import megahertz


@dataclass(frozen=True)
class RunReport:
    """Measurements of an inference, sizes in bytes. None if the board cannot measure or no reference was asked for."""

    board: str
    outputs: Mapping[str, np.ndarray]
    arena_bytes: int
    arena_high_water_bytes: int
    stack_bytes: int | None
    executed_macs: int
    planned_macs: int
    instructions: int | None
    equals_host: bool | None  # None: weights were exchanged that this process has no program for
    checked: Checked | None = None  # the comparison with the reference
    cost: Cost | None = None  # estimated by the plan; None in folders of older versions
    memories: tuple[tuple[str, int], ...] = ()  # names and bytes touched of memories that the network was placed in
    frames: int | None = None  # calls of a sequence, to which the work belongs; None: a single one
    frame_macs: int = 0  # the most multiply-accumulates of a call
    layers: tuple[LayerCheck, ...] = ()  # with `by_layer`: every tensor against the reference, in execution order

    @property
    def ok(self) -> bool:
        """Return True if arena and work are as planned, and the outputs match the host run and the reference."""
        within = self.arena_high_water_bytes <= self.arena_bytes and self.executed_macs == self.planned_macs
        right = self.equals_host is not False and first_difference(self.layers) is None
        return within and right and (self.checked is None or self.match is True)

    @property
    def match(self) -> bool | None:
        """Return True if the outputs equal the reference's; None if not asked for or undecidable (`Verdict.match`)."""
        return None if self.checked is None else self.checked.verdict.match

    @property
    def max_abs_diff(self) -> float | None:
        """Return the largest difference from the reference."""
        return None if self.checked is None else self.checked.verdict.gap

    @property
    def tolerance(self) -> float | None:
        """Return the difference allowed for roundings, if the outputs needed such tolerance."""
        return None if self.checked is None else self.checked.verdict.allowed

    @property
    def output_step(self) -> float | None:
        """Return the largest quantization step among outputs dequantized by the file."""
        return None if self.checked is None else self.checked.step

    @property
    def reference(self) -> str:
        """Return the name of the program behind the reference."""
        return "" if self.checked is None else self.checked.by

    @property
    def reference_note(self) -> str:
        """Return the remark on the reference."""
        return "" if self.checked is None else self.checked.note

    @property
    def verdict(self) -> str:
        """Describe the comparison with the reference in words."""
        if self.checked is None:
            return ""
        verdict, step = self.checked.verdict, self.checked.step
        few = f", in {verdict.differing} of {verdict.elements} elements" if verdict.elements else ""
        if verdict.match is None:
            return f"NOT CHECKED: {verdict.reason}; give the network's own inputs by --inputs"
        if verdict.match is False:
            return f"DIFFERENT: {verdict.reason}" if verdict.reason else f"DIFFERENT, by up to {verdict.gap}{few}"
        if verdict.allowed is not None:
            unit = step or 1.0
            gap, most = (f"{v / unit:.3g}" for v in (verdict.gap, verdict.allowed))
            steps = f" steps of {unit:g}" if step else ""
            if self.checked.exact:
                return f"equal in double precision; the reference's float32 is up to {gap}{steps} off{few}"
            return f"equal within {most}{steps} (by up to {gap}{few}), what single roundings change"
        if any(a.dtype.kind == "f" for a in self.outputs.values()):
            return f"equal within {FLOAT_TOLERANCE} of the largest value of each output (by up to {verdict.gap})"
        return "equal, every element"

    def to_dict(self) -> Run:
        """Return the JSON object of `tvm-cascade run --json`."""
        cost = self.cost
        work = {
            "cycles": None if cost is None else cost.cycles,
            "milliseconds": None if cost is None else cost.milliseconds,
            "millijoules": None if cost is None else cost.millijoules,
        }
        found = filled(Run, self, **work)
        if self.frames is not None:
            found["frames"], found["frame_macs"] = self.frames, self.frame_macs
        if self.layers:
            found["layers"] = [LayerComparison(**asdict(layer)) for layer in self.layers]
            found["first_difference"] = first_difference(self.layers)
        if self.memories:
            found["memories"] = [{"name": name, "high_water_bytes": touched} for name, touched in self.memories]
        return found

    def _estimated(self) -> list[str]:
        """Format the line with the plan's estimated cost."""
        if self.cost is None:
            return []
        cost = self.cost
        time = "" if cost.clock is None else f", {cost.milliseconds} ms at {megahertz(cost.clock)}"
        energy = "" if cost.millijoules is None else f", {cost.millijoules} mJ"
        return [f"cycles          {cost.cycles}{time}{energy}, estimated"]

    def _host_verdict(self) -> str:
        if self.equals_host is None:
            return "not compared: weights.bin is another than was compiled"
        return "equal" if self.equals_host else "DIFFERENT"

    @property
    def answer(self) -> str:
        """Say in a single line whether the outputs are right and the program takes no more than planned."""
        if self.equals_host is False:
            return f"FAILED: the outputs differ from those of this machine, on {self.board}"
        if self.checked is not None and self.match is not True:
            return f"FAILED: the outputs are not shown to be the reference's, on {self.board}"
        if (first := first_difference(self.layers)) is not None:
            return f"FAILED: {short_name(first)} is not the reference's, on {self.board}"
        if not self.ok:
            return f"FAILED: the program takes more than was planned, on {self.board}"
        what = "the outputs are the reference's" if self.checked is not None else "ran as planned, not checked"
        counted = [] if self.instructions is None else [f"{self.instructions} instructions"]
        time = None if self.cost is None else self.cost.milliseconds
        return ", ".join([f"ok: {what}, on {self.board}", *counted, *([] if time is None else [f"about {time} ms"])])

    def to_text(self) -> str:
        """Format the report: the answer, then a single line for each measurement."""
        by = "; ".join(filter(None, [self.reference, self.reference_note]))
        verdict = f"{self.verdict} ({by})" if self.checked is not None else "not checked (--check MODEL)"
        stack = "not measured on the host" if self.stack_bytes is None else f"{self.stack_bytes} bytes"
        counted = "no counter here" if self.instructions is None else f"{self.instructions}"
        return "\n".join(
            [
                self.answer,
                f"ran on          {self.board}",
                f"arena           {self.arena_bytes} bytes planned and allocated, "
                f"{self.arena_high_water_bytes} touched",
                *(f"{name:<16}{touched} bytes touched" for name, touched in self.memories),
                f"stack           {stack}",
                *([] if self.frames is None else [f"calls           {self.frames}, one after the other"]),
                f"work            {self.executed_macs} multiply-accumulates executed, {self.planned_macs} planned",
                f"instructions    {counted}",
                *self._estimated(),
                f"host run        {self._host_verdict()}",
                f"reference       {verdict}",
                *(layer_lines(self.layers) if self.layers else ()),
            ]
        )
