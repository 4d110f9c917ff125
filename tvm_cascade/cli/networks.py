"""The commands `plan` (a model's memory plan) and `compile` (a board project)."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.json_option import prints
from tvm_cascade.cli.option_file import ALL, EPILOG
from tvm_cascade.cli.options import TRIALS, board, model, option, planning, refuse_idle_trials, target
from tvm_cascade.cli.signals import first_interrupt_ends_searches
from tvm_cascade.cli.teaching import command
from tvm_cascade.request import EmitRequest, KernelRequest, Request
from tvm_cascade.schema.plan import Compilation, Plan


@command(epilog=EPILOG)
@model(ALL)
@target(Request)
@planning
@click.option(
    "--details", is_flag=True, help="Print all tables too: steps, the arena block by block, layers, the frontier."
)
@click.option("--verbose", "-v", is_flag=True, help="As --details, and why operators are left out of cascades.")
@prints(Plan)
@guarded
def plan(model: Path, report: Path | None, verbose: bool, details: bool, as_json: bool, **options: Any) -> None:
    """Say whether MODEL (.tflite, .onnx, .pt2) fits a board, and how little memory it needs.

    Nothing is written unless --report asks for it. Ctrl-C ends the search with the best plan so far. All memory is
    counted: input, output, intermediates, rolling buffers, row counters and scratch. Exit status 1: the board's RAM or flash
    cannot hold the network.
    """
    from tvm_cascade import api

    EmitRequest(report=report)  # refused before the work whose end needs it
    with first_interrupt_ends_searches():
        result = api.plan(model, progress=say, **options)
        if result.flash_planner is not None and (details or report is not None):
            say("planning for every --optimise")
            _ = result.flash_points  # here, where an interrupt ends it and the plan is told all the same
    if report is not None:
        result.write_report(report)
        say(f"report in {report}")
    show(as_json, result.to_dict(details=details), result.to_text(verbose=verbose, details=details))
    if result.fits is False:
        sys.exit(1)


@command(epilog=EPILOG)
@model(ALL)
@target(Request, required=True)
@board(EmitRequest, "Board by name, or the path of a board's .json. [default: the target's own]")
@option(EmitRequest, "emit", "Kernels as C99 or as an LLVM object. [default: the better for the target]")
@option(EmitRequest, "optimise", "What kernels are made for: few bytes of code, or few instructions.")
@option(EmitRequest, "require", "Refuse a network where a layer with multiply-accumulates has the generic kernel, several times "
        "slower than one made for the core (`optimized`); an image with malloc, free or sbrk (`no-heap`); one that computes on "
        "floats, in software or hardware (`no-float`). Once for each.")  # fmt: skip
@option(KernelRequest, "tune", "Count variants of kernels in the board's emulator and take the best (minutes).")
@option(KernelRequest, "metaschedule", "With --target host: let MetaSchedule tune row kernels on this machine; records are kept "
        "in this folder and used again.", metavar="DIR")  # fmt: skip
@TRIALS
@option(
    EmitRequest,
    "name",
    "Name of the network in files and functions. [default: that of the model's file]",
    metavar="NAME",
)
@option(EmitRequest, "hook", "Call a function of yours after every step: watchdogs, progress, cancelling.")
@option(EmitRequest, "link", "Link the image, or write the project alone, for an IDE that has its own compiler: RAM and flash "
        "are then estimated, not checked.", "--link/--no-link")  # fmt: skip
@option(
    EmitRequest,
    "cache",
    "Take what was compiled before from the cache folder and keep what is compiled there, or neither.",
    "--cache/--no-cache",
)
@planning
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the project."
)
@prints(Compilation)
@guarded
def compile(model: Path, as_json: bool, **options: Any) -> None:
    """Write a board project for MODEL: sources, weights for flash, linker script, main.c, and the linked image.

    If the network cannot fit, nothing is written and the exit status is 1.
    """
    from tvm_cascade import api

    refuse_idle_trials(options["metaschedule"])
    result = api.compile(model, progress=say, **options)
    show(as_json, result.to_dict(), result.to_text())
