"""Results of `plan` and `compile`: frozen records, printable as text and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from itertools import zip_longest
from operator import itemgetter
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tvm_cascade.cascading import Bounds, Plan, bound_of
from tvm_cascade.machine import Room
from tvm_cascade.messages import short_name
from tvm_cascade.report.cost import Cost
from tvm_cascade.report.dead_channels import dead_channels
from tvm_cascade.report.estimate import Estimate, frontier_table, total
from tvm_cascade.report.flash_points import FlashPoint, flash_table
from tvm_cascade.report.frame import frame_text
from tvm_cascade.report.layers import Layer, layer_rows, layer_table, layers
from tvm_cascade.report.placements import Placements
from tvm_cascade.report.screen import (
    COLUMNS,
    LINES,
    bound_text,
    choice_lines,
    choices,
    command_lines,
    computes_in_floats,
    labelled,
    limits,
    trade,
    wrap_figures,
)
from tvm_cascade.report.short_names import with_short_names
from tvm_cascade.report.steps import region_rows, step_rows, step_table
from tvm_cascade.report.stored_weights import storage_table, stored_weights
from tvm_cascade.report.text import (
    block_rows,
    does_twice,
    memory_map,
    memory_rows,
    memory_table,
    state_rows,
    summary,
    work_factor,
)
from tvm_cascade.report.verdict import Need, clock_of, holding, need_line, time_of, verdict, verdict_of_boards
from tvm_cascade.schema import plan as schema
from tvm_cascade.search_monitor import above
from tvm_cascade.sizes import bytes_and_unit, megahertz

if TYPE_CHECKING:
    from tvm_cascade.report.html import ReportData


Data = TypeVar("Data", bound=Mapping[str, Any])


@dataclass(frozen=True, repr=False)
class SearchResult(Generic[Data]):
    """The result of `stages` and `optimize`, unpacked by `data, text = result`."""

    data: Data
    text: str

    def to_dict(self) -> Data:
        """Return the JSON object of the command."""
        return self.data

    def to_text(self) -> str:
        """Return the result for reading."""
        return self.text

    def __repr__(self) -> str:
        return self.text

    def __iter__(self) -> Iterator[Any]:
        return iter((self.data, self.text))

    def __getitem__(self, index: int) -> Any:
        """Return the data (0) or the text (1), so the result unpacks like a tuple."""
        return (self.data, self.text)[index]


@dataclass(frozen=True, repr=False)
class PlanResult:
    """A plan and its frontier: pairs (peak bytes, work relative to the network's), in ascending order of bytes."""

    name: str
    plan: Plan
    frontier: tuple[tuple[int, float], ...]
    left_out: Mapping[str, str] = field(default_factory=dict)  # operator -> why it is in no cascade
    seconds: float = 0.0
    rewritten: schema.Rewritten | None = None  # substitutions made, and why; with `rewrite`, why none too
    _: KW_ONLY
    estimates: tuple[Estimate, ...] = ()  # of the frontier's plans
    bounds: Bounds | None = None  # of the search space at 1.00x
    # text: concats read in parts and channel tiling, what they save, or why there are none
    concats: str = ""
    candidates: Mapping[str, str] = field(default_factory=dict)  # those applied -> how exact they are
    groups: Mapping[str, int] = field(default_factory=dict)  # projection -> number of channel groups
    in_groups: tuple[bool, ...] = ()  # whether points of the frontier use channel tiling
    flash: tuple[int, int] | None = None  # bytes of weights, estimated bytes of code
    suggestions: tuple[str, ...] = ()  # options that would save RAM, and how much
    operators: tuple[Estimate, ...] = ()  # of the plan, by operator
    # by operator, cycles of its accesses of each memory of the plan; empty without named memories
    waits: tuple[tuple[float, ...], ...] = ()
    # bytes of activations that an inference reads and writes, by memory of the plan; empty without named memories
    traffic: tuple[tuple[int, int], ...] = ()
    frame: schema.Frame | None = None  # of a window that slides
    clock: int | None = None  # of the core, in Hz
    watts: float | None = None  # that the core draws at this clock
    # bytes of weights that are copied into memories that were named, by name
    weights_in: Mapping[str, int] = field(default_factory=dict)
    ram_weight_bytes: int = 0  # of weights that are copied to RAM, beside the arena
    # plans the network again for `flash_points`; None where there are none
    flash_planner: Callable[[], tuple[FlashPoint, ...]] | None = field(default=None, compare=False, repr=False)
    storage: str = "linked"  # of the weights: linked, section, file or stream
    placements: Placements | None = None  # in named memories: a bound, a frontier
    commands: tuple[str, ...] = ()  # command lines that get the plans of the frontier
    # whether a limit ended a search: more time may give a smaller arena
    limited: bool = False
    # by operator, tensors of the model's file that it came from
    origins: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    removed: tuple[schema.Removed, ...] = ()  # dead channels, by layer
    file_macs: int = 0  # of the file's network, dead channels included
    file_weight_bytes: int = 0  # of its constants
    # text: what the search leaves out because of the network's size
    not_searched: str = ""
    file: str = ""  # the model, as it was given
    core: str = ""  # that the plan is for
    room: Room | None = None  # of the board that was given
    # of the boards with this core, and of all others
    rooms: tuple[tuple[Room, ...], tuple[Room, ...]] = ((), ())
    command: str = ""  # command line of this plan
    next_step: str = ""  # and the one that compiles it

    @property
    def peak_bytes(self) -> int:
        """Return the arena's bytes, under the name in `plan --json`."""
        return self.plan.peak

    @property
    def macs(self) -> int:
        """Return the multiply-accumulates executed by the plan."""
        return self.plan.macs

    @property
    def estimated_instructions(self) -> int:
        """Return the estimated instructions of a single inference by the plan."""
        return self.estimate.instructions

    @property
    def estimate(self) -> Estimate:
        """Return the estimated costs of a single inference by the plan.

        The plan need not be on the frontier: under a cap the fastest plan that fits is chosen.
        """
        return total(self.operators)

    @property
    def cycles(self) -> int:
        """Return the estimated cycles of an inference: arithmetic, and accesses to the named memories."""
        return self.estimate.cycles

    @property
    def milliseconds(self) -> float | None:
        """Return the estimated time of an inference at the given clock; None without a clock."""
        return self._time_of(self.cycles)

    @property
    def millijoules(self) -> float | None:
        """Return the estimated energy of an inference; None without a clock and the core's power."""
        return Cost(self.cycles, self.clock, self.watts).millijoules

    @property
    def need(self) -> Need | None:
        """Return the bytes the network takes on a board; None if its flash is unknown."""
        if self.flash is None:
            return None
        constants, code = self.flash
        copies = sum(self.weights_in.values()) or self.ram_weight_bytes
        return Need(self.plan.peak + copies, 0 if self.storage in ("file", "stream") else constants, code)

    @property
    def fits(self) -> bool | None:
        """Return True if the board holds the network; None without a board, or if only the estimated code exceeds the
        flash.
        """
        need = self.need
        return None if need is None or self.room is None else need.fits(self.room)

    @property
    def smallest_boards(self) -> tuple[str, ...]:
        """Names of the known boards with this core that hold the network, the smallest first; empty if a given board does too."""
        need = self.need
        if need is None or (self.room is not None and self.fits is not False):
            return ()
        return tuple(room.board for room in holding(need, self.rooms[0]))

    @property
    def layers(self) -> tuple[Layer, ...]:
        """Return the cost of every operator, in execution order."""
        return tuple(layers(self.plan, self.operators, self.waits)) if self.operators else ()

    @cached_property
    def flash_points(self) -> tuple[FlashPoint, ...]:
        """Plan the network again with every `--optimise`; return flash against cycles, by ascending bytes."""
        return () if self.flash_planner is None else self.flash_planner()

    def to_dict(self, details: bool = False) -> schema.Plan:
        """Return the JSON object of `tvm-cascade plan --json`; `details` adds what takes further plans, as `--details`."""
        plan = self.plan
        found: schema.Plan = {
            "model": self.name,
            "baseline_peak_bytes": plan.baseline_peak,
            "peak_bytes": plan.peak,
            "macs": plan.macs,
            "baseline_macs": plan.baseline_macs,
            "removed": list(self.removed),
            "file_macs": self.file_macs,
            "file_weight_bytes": self.file_weight_bytes,
            "bound_bytes": bound_of(plan),
            "search_bound_bytes": plan.bound,
            "optimal": None if does_twice(plan) else plan.peak <= plan.bound,
            "gap_percent": None if does_twice(plan) else round(above(plan.peak, bound_of(plan)), 2),
            "limited": self.limited or bool(self.not_searched),
            "not_searched": self.not_searched,
            "bounds": self._bounds(),
            "estimated": self.estimate.to_dict(),
            "cycles": self.cycles,
            "milliseconds": self.milliseconds,
            "millijoules": self.millijoules,
            "layers": layer_rows(self.layers, self.origins),
            "frontier": self._points(),
            "regions": region_rows(plan),
            "left_out": dict(self.left_out),
            "steps": step_rows(plan),
            "buffers": block_rows(plan),
            "concats": self.concats,
            "candidates": dict(self.candidates),
            "channel_groups": dict(self.groups),
            "segments": [[plan.graph.ops[o].name for o in s.ops] for s in plan.segments],
            "suggestions": list(self.suggestions),
            "ram_weight_bytes": self.ram_weight_bytes,
            "fits": self.fits,
            "smallest_boards": list(self.smallest_boards),
            "seconds": self.seconds,
        }
        if plan.graph.states:
            found["states"] = state_rows(plan)
        if plan.placed:
            found["memories"] = memory_rows(plan, self.weights_in, self.traffic)
        if self.placements is not None:
            found["placement"] = self.placements.to_dict()
            found["fast_frontier"] = self._fast_points(self.placements)
        if self.frame is not None:
            found["frame"] = self.frame
        if self.flash is not None:
            found["weight_bytes"], found["estimated_code_bytes"] = self.flash
        if details and self.flash_points:
            found["flash_frontier"] = [point.to_dict() for point in self.flash_points]
        if self.rewritten is not None:
            found["rewritten"] = self.rewritten
        return found

    def _weights_text(self) -> list[str]:
        """Format the line on weights that are not linked with the code; none for others."""
        size = self.flash[0] if self.flash is not None else 0
        if self.storage == "section":
            return ["weights         in a section of their own, .tvm_weights, which your linker script places"]
        if self.storage == "file":
            return [
                f"weights         {size} bytes in weights.bin, which your program binds by pointer: not in the image"
            ]
        if self.storage == "stream":
            return [
                f"weights         {size} bytes in weights.bin, read layer by layer into {self.ram_weight_bytes} bytes of RAM "
                "beside the arena"
            ]
        return []

    def _frame_text(self) -> list[str]:
        """Format the lines on a sliding window's frame; none for other networks."""
        instructions = self.estimated_instructions if self.operators else None
        return [] if self.frame is None else frame_text(self.frame, self.plan.macs, instructions)

    def _removed_text(self) -> list[str]:
        """Format the line on dead channels; none if nothing was removed."""
        told = dead_channels(self.removed, self.file_weight_bytes, self.file_macs, self.plan.baseline_macs)
        return [f"dead channels   {told}"] if told else []

    def _stored_text(self) -> list[str]:
        """Format the line on weights in fewer bytes; none if all are as they are."""
        told = stored_weights(self.plan.graph)
        return [f"stored          {told}"] if told else []

    def _fast_points(self, placements: Placements) -> list[schema.FastPoint]:
        """List bytes of the fastest memory against cycles, as JSON objects."""
        return [
            {"fast_bytes": p.fast_bytes, "cycles": p.cycles, "milliseconds": self._time_of(p.cycles)}
            for p in placements.frontier
        ]

    def _time_of(self, cycles: int) -> float | None:
        return Cost(cycles, self.clock, self.watts).milliseconds

    def _points(self) -> list[schema.Point]:
        """Return the frontier as JSON objects."""
        points: list[schema.Point] = []
        for (peak, factor), estimate, marked in zip_longest(self.frontier, self.estimates, self.in_groups):
            told: schema.Estimated = estimate.to_dict() if estimate else {}
            points.append({"peak_bytes": peak, "mac_factor": factor, "channel_groups": bool(marked), **told})
        return points

    def _bounds(self) -> schema.Bounds | None:
        """Return the bounds at 1.00x and the plan's gaps in per cent; a plan with double work has no gap."""
        if self.bounds is None:
            return None
        return {"rows": self._bound(self.bounds.rows), "pixels": self._bound(self.bounds.pixels)}

    def _bound(self, bound: int) -> schema.Bound:
        plan = self.plan
        return {"bytes": bound, "gap_percent": None if does_twice(plan) else round(above(plan.peak, bound), 2)}

    def to_text(self, verbose: bool = False, details: bool = False) -> str:
        """Return the plan for reading, in a single screen.

        `details` adds all tables: steps, the arena, layers, the frontier; `verbose` also why operators are left out of cascades.
        """
        shown = self._with_short_names()
        screen = "\n".join(shown._screen())
        return f"{screen}\n\n{shown._details(verbose)}" if details or verbose else screen

    def __repr__(self) -> str:
        return self.to_text()

    def _repr_html_(self) -> str:
        """Return the page of the report in a frame, for notebooks."""
        from html import escape

        return f'<iframe srcdoc="{escape(self._page())}" style="width:100%;height:40em;border:0"></iframe>'

    def _with_short_names(self) -> PlanResult:
        """Return the result with names shortened for text."""
        left_out = {short_name(name): reason for name, reason in self.left_out.items()}
        origins = {short_name(name): tensors for name, tensors in self.origins.items()}
        return replace(self, plan=with_short_names(self.plan), left_out=left_out, origins=origins)

    def _verdict(self) -> list[str]:
        """Return the first lines of the answer: whether a board holds the network, and the memory it takes."""
        need, time = self.need, time_of(self.cycles, self.milliseconds)
        if need is None or self.core == "host":
            return labelled("arena", bytes_and_unit(self.plan.peak))
        if self.room is not None:
            line = wrap_figures(verdict(need, self.room, time))
            return line if self.fits is not False else [*line, *self._boards(need)]
        return [*self._boards(need), *wrap_figures(need_line(need, time))]

    def _boards(self, need: Need) -> list[str]:
        """Return the lines that name the smallest boards for the network; none if no boards were compared."""
        return wrap(verdict_of_boards(need, self.core, *self.rooms), COLUMNS) if self.rooms[1] else []

    def _screen(self) -> list[str]:
        """Return the first screen: lines that do not fit are left out, the least important first."""
        plan, room, need = self.plan, self.room, self.need
        where = f", for {self.core}{clock_of(self.clock)}" if self.core else ""
        model = Path(self.file).name or self.name
        gain = plan.baseline_peak / plan.peak if plan.peak else 1.0
        arena = f"{plan.peak} bytes, everything counted; layer by layer {plan.baseline_peak}, {gain:.2f}x"
        at = f"{self.milliseconds} ms{clock_of(self.clock)}, " if self.milliseconds is not None else ""
        timed = self.operators and self.core != "host"
        energy = "" if self.millijoules is None else f", {self.millijoules} mJ"
        sections = [  # the number says what is left out first, the largest
            (0, self._verdict()),
            (0, ["", *labelled("model", f"{model}: {len(self.layers or plan.graph.ops)} operators{where}")]),
            (0, labelled("arena", arena)),
            (4, [] if room is None or need is None else labelled("RAM", _ram_text(need, room))),
            (3, [] if need is None else labelled("flash", _flash_text(need, room))),
            (5, labelled("time", f"about {at}{self.cycles} cycles{energy}") if timed else []),
            (6, labelled("work", f"{plan.macs} multiply-accumulates ({work_factor(plan):.2f}x)")),
            (7, labelled("bound", bound_text(plan, self.frontier))),
            (2, [line for text in self._more() for line in labelled(*text)]),
            (3, labelled("trade", trade(plan, self.estimate, self.frontier, self.estimates)) if room else []),
            (2, _listed("limits", list(limits(plan, self.layers, self.origins)), 1)),
            (1, choice_lines(choices(plan, self.estimate, self.frontier, self.estimates)) if self.estimates else []),
            (8, ["", *_listed("less RAM", self.suggestions[:2], 2)] if self.suggestions else []),
            (1, ["", *self._next()] if self._has_next else []),
            (9, labelled("more", "--details: all steps, blocks and layers; --report plan.html: as a page")),
        ]
        room_for = LINES - 3 * (self.limited or bool(self.not_searched))
        while sum(len(lines) for _, lines in sections) > room_for and max(sections, key=itemgetter(0))[0]:
            sections.remove(max(sections, key=itemgetter(0)))
        return [line for _, lines in sections for line in lines]

    @property
    def _has_next(self) -> bool:
        """Return True if a command helps further: the network fits, or an int8 network would be smaller."""
        return bool(self.next_step) and (self.fits is not False or computes_in_floats(self.plan.graph))

    @property
    def _fits_nothing(self) -> bool:
        """Return True if the given board cannot hold the network, or, without a board, no known one."""
        if self.need is None or self.room is not None or not self.rooms[1]:
            return self.fits is False
        return not any(holding(self.need, rooms) for rooms in self.rooms)

    def _next(self) -> list[str]:
        """Return the lines with the next command: it compiles the network, or makes a smaller one for a board that is too
        small.
        """
        if not self._fits_nothing or not computes_in_floats(self.plan.graph):
            return command_lines("next", self.next_step)
        ending = Path(self.file).suffix
        if ending in (".tflite", ".onnx", ".pt2"):
            made = f"tvm-cascade quantize {shlex.quote(self.file)} --data SAMPLES.npz -o int8{ending}"
            return [*command_lines("next", made), *labelled("", "int8 takes about a quarter of these bytes")]
        return labelled("next", "quantize it: int8 takes about a quarter of these bytes (docs/training.md says how)")

    def _more(self) -> Iterator[tuple[str, str]]:
        """Yield labels and texts of rare properties: several memories, states, a sliding window."""
        if self.plan.placed:
            rows = memory_rows(self.plan, self.weights_in, self.traffic)
            used = (f"{row['name']} {row['peak_bytes']} of {row['capacity_bytes']}" for row in rows)
            yield "memories", ", ".join(used) + " bytes"
        if states := state_rows(self.plan):
            yield "states", f"{sum(s['bytes'] for s in states)} bytes of the arena are kept from call to call"
        for line in self._removed_text():
            yield "dead", line[16:]
        if told := stored_weights(self.plan.graph):
            yield "stored", told
        for line in self._weights_text():
            yield "weights", line[16:]
        for label, line in zip(("frame", "its work"), self._frame_text(), strict=False):
            yield label, line[16:]

    def _details(self, verbose: bool) -> str:
        """Return all tables of a plan."""
        parts = [summary(self.plan, self.bounds, self.frontier), *self._removed_text(), *self._frame_text()]
        if self.flash is not None:
            parts.append(f"flash           {self.flash[0]} bytes of weights and tables, about {self.flash[1]} of code")
        parts += [*self._stored_text(), *self._weights_text()]
        if self.plan.placed:
            parts += ["", memory_table(self.plan, self.weights_in, self.traffic)]
        if self.placements is not None:
            parts += self.placements.to_text(self.plan.placed[0].ram.name)
        parts += ["", step_table(self.plan), "", memory_map(self.plan)]
        if self.concats:
            parts += ["", self.concats]
        if self.candidates:
            parts += ["", "kept: " + ", ".join(f"{name} ({exact})" for name, exact in self.candidates.items())]
        if self.operators:
            parts += ["", layer_table(self.layers, self.clock)]
            parts += ["", storage_table(self.layers)] if any(x.storage for x in self.layers) else []
        if self.millijoules is not None:
            parts += [f"{self.millijoules} mJ of energy at {self.watts:g} W (est.)"]
        if self.estimates:
            parts += ["", frontier_table(self.plan, self.estimate, self.frontier, self.estimates, self.in_groups)]
        if self.flash_points:
            parts += ["", flash_table(self.flash_points)]
        if self.suggestions:
            parts += ["", "less RAM:", *(f"  {line}" for line in self.suggestions)]
        if verbose:
            why = [f"  {name}: {reason}" for name, reason in self.left_out.items()]
            parts += ["", "left out of cascades:", *(why or ["  none"])]
        return "\n".join(parts)

    def write_report(self, to: Path) -> None:
        """Write one self-contained HTML page if `to` ends in .html, else a folder with the page, pictures and data."""
        from tvm_cascade.report.html import write_report

        write_report(to, self._report(details=True))

    def _page(self) -> str:
        """Return the HTML page of the report."""
        from tvm_cascade.report.html import html_page

        return html_page(replace(self, flash_planner=None)._report())  # a notebook shows it at once

    def _report(self, details: bool = False) -> ReportData:
        """Collect the data shown by the report page; `details` as in `to_dict`."""
        from tvm_cascade.report.html import ReportData, today

        shown = self._with_short_names()
        text = "\n".join([*PlanResult._screen(shown), "", PlanResult._details(shown, verbose=True)])
        board = "" if self.room is None else self.room.board
        clock = "" if self.clock is None else megahertz(self.clock)
        told = (("File", self.file), ("Board", board), ("Core", self.core), ("Clock", clock), ("Date", today()))
        return ReportData(
            self.name,
            shown.plan,
            self.frontier,
            self.estimates,
            self.bounds,
            self.to_dict(details),
            text,
            operators=self.operators,
            waits=self.waits,
            commands=self.commands,
            verdict=" ".join(PlanResult._verdict(shown)),
            facts=tuple((label, value) for label, value in (*told, ("Command", self.command)) if value),
        )


def _ram_text(need: Need, room: Room) -> str:
    """Format the RAM taken on a board."""
    stack = f", {room.stack} kept for the stack" if room.stack else ""
    return f"{need.ram + room.stack} of {room.ram} bytes: {need.ram} of the network{stack}"


def _flash_text(need: Need, room: Room | None) -> str:
    """Format the flash taken on a board."""
    of = "" if room is None else f" of {room.flash}"
    return f"about {need.flash}{of} bytes: {need.constants} of weights, about {need.code} of code"


def _listed(label: str, texts: Sequence[str], most: int) -> list[str]:
    """Return texts below each other behind a single label, each in a limited number of lines."""
    return [line for k, text in enumerate(texts) for line in labelled("" if k else label, text, most)]


@dataclass(frozen=True, repr=False)
class CompileResult(PlanResult):
    """A plan and the project written."""

    folder: Path = Path()
    target: str = ""
    board: str = ""
    ram_bytes: int | None = None  # arena, data and bss of the image; None for the host
    flash_bytes: int | None = None
    elf: str | None = None  # relative to `folder`
    files: tuple[str, ...] = ()
    stored: schema.StoredWeights = field(  # where the weights are stored
        default_factory=lambda: schema.StoredWeights(storage="linked", bytes=0, sha256="")
    )
    stack_bytes: int | None = None  # reserve of the image under a cap on all RAM; None without one
    unlinked: str = ""  # why no image was linked; empty where it was, and where none ever is

    def to_dict(self, details: bool = False) -> schema.Compilation:
        """Return the JSON object of `tvm-cascade compile --json`."""
        return {
            **super().to_dict(details),
            "target": self.target,
            "board": self.board,
            "arena_bytes": self.plan.peak,
            "ram_bytes": self.ram_bytes,
            "flash_bytes": self.flash_bytes,
            "stack_bytes": self.stack_bytes,
            "weights": self.stored,
            "elf": self.elf,
            "files": list(self.files),
        }

    @property
    def need(self) -> Need | None:
        """Return the bytes the linked image takes on its board; an estimate if nothing was linked, None for the host."""
        if self.ram_bytes is None or self.flash_bytes is None:
            return super().need
        return Need(self.ram_bytes, self.flash_bytes, 0, linked=True)

    def to_text(self, verbose: bool = False, details: bool = False) -> str:
        """Return a summary for the terminal: whether the image fits, the project, its memory; the rest as in `PlanResult`."""
        lines = [*self._answer(), *self._figures()]
        return "\n".join([*lines, "", self._with_short_names()._details(verbose)] if details or verbose else lines)

    def _answer(self) -> list[str]:
        """Return the lines that tell whether the image fits, which files were written, and the next step."""
        lines = [] if self.room is None else [*self._verdict(), ""]
        lines += [f"project         {self.folder} for {self.target} on {self.board}: {len(self.files)} files"]
        if self.elf:
            lines += [f"image           {self.folder / self.elf}"]
        if self.unlinked:
            return [*lines, f"not linked      {self.unlinked}"]
        return [*lines, f"next            {self.next_step}"] if self.next_step else lines

    def _figures(self) -> list[str]:
        """Return the figures of plan and image, a line each."""
        lines = [summary(self.plan), *self._removed_text(), *self._frame_text()]
        lines += [*self._stored_text(), *self._weights_text()]
        if self.ram_bytes is not None:
            lines += [
                f"RAM             {bytes_and_unit(self.ram_bytes)} of arena, data and bss in the image, without the stack"
            ]
            if self.stack_bytes is not None:
                lines += [
                    f"stack           {self.stack_bytes} bytes at most, by its calls: {self.ram_bytes + self.stack_bytes} in all"
                ]
            if self.ram_weight_bytes and self.storage != "stream":
                lines += [f"weights in RAM  {self.ram_weight_bytes} of these bytes, copied there by the first run"]
            lines += [f"flash           {bytes_and_unit(self.flash_bytes or 0)} of code, weights and tables"]
        if self.operators and self.board != "host":  # whose cycles nobody estimates
            at = "" if self.clock is None else f", {self.milliseconds} ms at {megahertz(self.clock)}"
            lines += [f"time            about {self.cycles} cycles an inference{at}"]
        return lines
