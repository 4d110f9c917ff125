"""`plan` and `compile`: from a model to a plan, and to a project."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tvm_cascade.cli.guard import guarded, say, show
from tvm_cascade.cli.options import (
    DATABASE,
    JSON,
    MODEL,
    REPORT,
    TARGETS,
    TRIALS,
    parse_bytes,
    planning,
    planning_values,
    refuse_idle_trials,
)


@click.command()
@MODEL
@click.option("--target", default="cortex-m4", show_default=True, metavar="T", help=f"One of {TARGETS}.")
@DATABASE
@planning
@REPORT
@click.option("--verbose", "-v", is_flag=True, help="Say why operators are left out of cascades.")
@JSON
@guarded
def plan(
    model: Path, target: str, database: Path | None, report: Path | None, verbose: bool, as_json: bool, **values: Any
) -> None:
    """Show how little memory MODEL (.tflite, .onnx, .pt2) needs, and where the bytes are.

    Nothing is written unless --report asks for it. All memory is counted: input, output, intermediates, rolling
    buffers, row counters and scratch.
    """
    from tvm_cascade import api

    result = api.plan(model, target=target, database=database, progress=say, **planning_values(values))
    if report is not None:
        result.write_report(report)
        say(f"report in {report}")
    show(as_json, result.to_dict(), result.to_text(verbose=verbose))


@click.command()
@MODEL
@click.option("--target", required=True, metavar="T", help=f"One of {TARGETS}.")
@click.option("--board", metavar="B", help="Board by name, or the path of a board's .json. [default: the target's own]")
@click.option(
    "--emit",
    type=click.Choice(["c", "obj"]),
    help="Kernels as C99 or as an LLVM object. [default: the better for the target]",
)
@click.option("--optimise", type=click.Choice(["size", "speed", "balanced"]), default="balanced", show_default=True)
@click.option(
    "--tune", is_flag=True, help="Count variants of kernels in the board's emulator and take the best (minutes)."
)
@DATABASE
@click.option("--metaschedule", metavar="DIR", type=click.Path(path_type=Path), help="With --target host: let MetaSchedule "
              "tune row kernels on this machine; records are kept in this folder and used again.")  # fmt: skip
@TRIALS
@click.option(
    "--name", metavar="NAME", help="Of the network, in files and functions. [default: that of the model's file]"
)
@click.option(
    "--hook", is_flag=True, help="Call a function of yours after every step: watchdogs, progress, cancelling."
)
@click.option("--ram-weights", metavar="SIZE", callback=parse_bytes, help="Read up to SIZE of weights, those that are read most, "
              "from RAM beside the arena, for cores that wait for their flash.")  # fmt: skip
@planning
@REPORT
@click.option(
    "--output", "-o", type=click.Path(path_type=Path, file_okay=False), required=True, help="Folder of the project."
)
@JSON
@guarded
def compile(
    model: Path,
    target: str,
    board: str | None,
    emit: str | None,
    optimise: str,
    tune: bool,
    database: Path | None,
    metaschedule: Path | None,
    trials: int,
    name: str | None,
    hook: bool,
    ram_weights: int | None,
    report: Path | None,
    output: Path,
    as_json: bool,
    **values: Any,
) -> None:
    """Write a board project for MODEL: sources, weights for flash, linker script, main.c, and the linked image.

    If the network cannot fit, nothing is written and the exit status is 1.
    """
    from tvm_cascade import api

    refuse_idle_trials(metaschedule)
    result = api.compile(
        model,
        target=target,
        board=board,
        emit=emit,
        optimise=optimise,
        tune=tune,
        database=database,
        metaschedule=metaschedule,
        trials=trials,
        name=name,
        hook=hook,
        ram_weights=ram_weights or 0,
        report=report,
        output=output,
        progress=say,
        **planning_values(values),
    )
    show(as_json, result.to_dict(), result.to_text())
