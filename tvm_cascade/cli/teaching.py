"""Help that teaches: `--help` shows two examples, then the common options, in groups and a line each.

`--help-all` shows every option with the whole text. Commands with few options have no groups: `--help` shows all.
"""

from __future__ import annotations

import re
import shlex
from functools import cached_property, partial

import click

_MODEL = ("target", "details", "report", "json")
_MEMORY = ("sram", "ram", "flash", "weights", "memory", "stream-input", "stored-io")
_TIME = ("max-time", "max-macs", "objective", "clock", "time-limit")
_STREAMS = ("hop", "axis", "state")
_CUTS = ("until", "from", "input-shape", "input-value")
_MEASURED = ("cost", "metaschedule", "database", "tracker", "key", "parallel")
_FOLDER = ("emit", "arch", "precision")

GROUPS: dict[str, dict[str, tuple[str, ...]]] = {  # by command: titles and options; all others are behind --help-all
    "plan": {"Basics": _MODEL, "Memory": _MEMORY, "Time": _TIME, "Streams": _STREAMS, "Cuts": _CUTS},
    "compile": {
        "Basics": ("target", "board", "output", "emit", "link", "name", "report", "json"),
        "Memory": _MEMORY,
        "Time": (*_TIME, "optimise", "tune"),
        "Streams": _STREAMS,
        "Cuts": _CUTS,
    },
    "validate": {
        "Basics": ("data", "target", "board", "port", "range", "json"),
        "Memory": tuple(name for name in _MEMORY if name != "weights"),
        "Time": ("max-time", "max-macs", "time-limit"),
        "Cuts": _CUTS,
    },
    "stages": {
        "Basics": ("target", "device", "output", "load", "picture", "details", "beside", "json"),
        "Measuring": _MEASURED,
        "Program": (*_FOLDER, "threads", "streams"),
        "Search": ("batch", "unit", "time-limit"),
        "Cuts": ("until", "from", "input-shape"),
    },
    "optimize": {
        "Basics": ("target", "device", "output", "picture", "details", "json"),
        "Measuring": ("cost", "database", "tracker", "key", "parallel"),
        "Program": _FOLDER,
        "Search": ("alpha", "budget", "time-limit"),
        "Cuts": ("until", "from", "input-shape"),
    },
}

_LINES = {  # what an option is, in a line
    "alpha": "how much worse a graph may get on the way",
    "arch": "GPU architectures of --emit",
    "axis": "with --hop: the axis of the input that is time",
    "batch": "batch size, for the analytic cost",
    "beside": "another network that runs at the same time",
    "board": "board by name or .json; default: the target's",
    "budget": "graphs to price at most",
    "clock": "clock of the core, to tell milliseconds",
    "cost": "what is least, and whether it is measured",
    "data": "an .npz, or a folder of images or sounds",
    "database": "file that keeps measurements",
    "details": "all tables too: steps, arena, layers, frontier",
    "device": "description that costs are estimated by",
    "emit": "kernels as C99 (c) or an LLVM object (obj)",
    "flash": "cap on code, weights and tables of the image",
    "from": "begin the network at these tensors of the file",
    "hop": "the window slides: a call takes N new rows",
    "input-shape": "fix sizes that the file leaves open",
    "input-value": "an input with one value in every call",
    "json": "print one JSON object; `schema` has its keys",
    "key": "key of the tracker's servers",
    "link": "or --no-link: write the project, link nothing",
    "load": "price a schedule that -o saved",
    "max-macs": "recompute up to F times the network's work",
    "max-time": "up to F times the fastest plan; default: 1.2",
    "memory": "a memory to place blocks in, fastest first",
    "metaschedule": "kernels tuned by MetaSchedule; keeps records",
    "name": "name of the network in files and functions",
    "objective": "with --memory: few cycles, or fewest bytes",
    "optimise": "few bytes of code, or few instructions",
    "output": "where to write",
    "parallel": "servers that are used at the same time",
    "picture": "draw it (.png, .svg)",
    "port": "the real board, over a serial port",
    "precision": "fp32, fp16, bf16 or tf32",
    "ram": "cap on all RAM of the image, stack included",
    "range": "real values of black and white",
    "report": "write an HTML page, or a folder",
    "sram": "cap on the arena; default: a named board's RAM",
    "state": "an input that takes what an output returned last",
    "stored-io": "inputs and outputs as stored integers, not floats",
    "stream-input": "ask for the input row by row",
    "streams": "streams of a GPU that share a stage",
    "target": "core, microcontroller or board (`targets`)",
    "threads": "threads that share a stage",
    "time-limit": "end searches after S seconds",
    "tracker": "measure on the servers of TVM's RPC tracker",
    "tune": "count variants of kernels in the emulator",
    "weights": "linked, in a section, in a file, or streamed",
    "unit": "what is scheduled as one",
    "until": "end the network at these tensors of the file",
}
_OWN_LINES = {  # where a command means something else
    ("optimize", "emit"): "folder that runs the graph with TVM alone",
    ("optimize", "output"): "save the graph (.onnx, else a Relax module)",
    ("optimize", "target"): "cuda or llvm, with options of TVM's behind",
    ("optimize", "details"): "all substitutions, not only the first",
    ("stages", "details"): "all groups of the timeline, not only the first",
    ("stages", "emit"): "folder that runs the schedule with TVM alone",
    ("stages", "output"): "save the schedule as JSON",
    ("stages", "target"): "cuda or llvm, with options of TVM's behind",
    ("compile", "output"): "folder of the project",
}

EXAMPLES: dict[str, tuple[str, ...]] = {
    "benchmark": (
        "benchmark program --check net.onnx",
        "benchmark firmware --by-layer --trace layers.json",
        "benchmark tuned --against before.json",
    ),
    "allocate": ("allocate buffers.csv -o placed.csv", "allocate buffers.csv --capacity 64KiB"),
    "bundle": ("bundle wake words -o both", "bundle wake words -o both --board mps2-an386"),
    "compare": ("compare before.json after.json", "compare firmware/v1 firmware/v2"),
    "compile": (
        "compile model.tflite --target nucleo-f446re -o firmware",
        "compile model.onnx --target cortex-m4 --sram 64KiB -o firmware",
    ),
    "doctor": ("doctor", "doctor --model model.tflite"),
    "export": ("export firmware --as platformio -o library", "export firmware --as stm32cube -o cube"),
    "flash": ("flash firmware", "flash firmware --image application"),
    "front-end": ("front-end -o audio", "front-end --step-ms 10 --channels 32 -o audio"),
    "monitor": ("monitor", "monitor /dev/ttyACM0 --baud 115200"),
    "optimize": ("optimize net.onnx --target cuda -o better.onnx", "optimize net.onnx --target llvm --cost flops"),
    "order": ("order model.tflite", "order graph.json --on-chip 256KiB"),
    "plan": ("plan model.tflite --target nucleo-f446re", "plan model.onnx --sram 64KiB --report plan.html"),
    "quantize": (
        "quantize net.onnx --data samples.npz -o int8.onnx",
        "quantize net.onnx --data photos -o int8.onnx --calibration entropy",
        "quantize net.onnx --data samples.npz -o int4.onnx --weight-bits 4",
    ),
    "run": ("run firmware --check model.tflite", "run firmware --port"),
    "schema": ("schema plan", "schema run"),
    "stages": (
        "stages net.onnx --target cuda --emit program --arch sm_90",
        "stages net.onnx --target llvm --cost measured",
    ),
    "targets": ("targets", "targets --json"),
    "validate": (
        "validate model.tflite --data test.npz",
        "validate model.tflite --data photos --board mps2-an386",
        "validate int8.onnx --data test.npz --by-layer net.onnx",
    ),
}


class Command(click.Command):
    """A command with examples in `--help`, and if listed in `GROUPS`, a single line for each common option."""

    @cached_property
    def help_all(self) -> click.Option:
        """Make the option --help-all."""
        return click.Option(
            ["--help-all"],
            is_flag=True,
            is_eager=True,
            expose_value=False,
            callback=_show_all,
            help="Show all options.",
        )

    def get_params(self, ctx: click.Context) -> list[click.Parameter]:
        params = super().get_params(ctx)
        return [*params[:-1], self.help_all, params[-1]] if self.name in GROUPS else params

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.MissingParameter as error:
            missing = error.param.opts if error.param is not None else []
            examples = EXAMPLES.get(self.name or "", ())
            fitting = [e for e in examples if any(name in e for name in missing)]
            if not examples:
                raise
            shown = (fitting or examples)[0]
            raise click.UsageError(f"{error.format_message()} For example: tvm-cascade {shown}", ctx) from None

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_help_text(ctx, formatter)
        if self.name in EXAMPLES:
            with formatter.section("Examples"):
                for example in EXAMPLES[self.name]:
                    formatter.write(f"{'':{formatter.current_indent}}tvm-cascade {shlex.join(shlex.split(example))}\n")

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        groups = GROUPS.get(self.name or "")
        if groups is None or ctx.meta.get(_ALL):
            super().format_options(ctx, formatter)
            return
        options = {_key(p): p for p in self.params if isinstance(p, click.Option)}
        for title, names in groups.items():
            rows = [(_spelled(options[n], ctx), self._line(n)) for n in names if n in options]
            with formatter.section(title):
                formatter.write_dl(rows, col_max=28)
        with formatter.section("All"):
            more = len(options) - sum(len(names) for names in groups.values())
            formatter.write_dl([("--help-all", f"these in full, and {more} more options")])

    def _line(self, name: str) -> str:
        return _OWN_LINES.get((self.name or "", name), _LINES[name])


command = partial(click.command, cls=Command)
_ALL = "tvm_cascade.help_all"
_VALUE = 18  # characters of what an option takes, at most


def _show_all(context: click.Context, _option: click.Parameter, asked: bool) -> None:
    if asked and not context.resilient_parsing:
        context.meta[_ALL] = True
        click.echo(context.get_help(), color=context.color)
        context.exit()


def _key(option: click.Option) -> str:
    """Return an option's long spelling without dashes."""
    return max(option.opts, key=len).lstrip("-")


def _spelled(option: click.Option, context: click.Context) -> str:
    """Format an option with the name of the value."""
    spelled = ", ".join(sorted(option.opts, key=len))
    value = "" if option.is_flag else option.make_metavar(context)
    if len(value) > _VALUE:
        value = re.split(r"[=,\[]", value)[0] or "NAME"
    return f"{spelled} {value}".strip()
