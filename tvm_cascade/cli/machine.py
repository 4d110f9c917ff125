"""`doctor`: what this machine has and lacks."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from tvm_cascade.cli.guard import guarded, show
from tvm_cascade.cli.options import JSON


@click.command()
@click.option("--model", type=click.Path(path_type=Path), help="Also name every operator of this file that is missing.")
@JSON
@guarded
def doctor(model: Path | None, as_json: bool) -> None:
    """Say what is installed, what is missing, and how to get it."""
    from tvm_cascade.micro.doctor import diagnose

    result = diagnose(model)
    show(as_json, result.to_dict(), result.to_text())
    if not result.ok:
        sys.exit(1)
