"""Texts made of the templates in `templates/`: whatever is put into them is escaped."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from tvm_cascade.messages import printable_lines
from tvm_cascade.sizes import human

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, **values: Any) -> str:
    """Render a template with `values`; without unprintable characters."""
    return printable_lines(_environment().get_template(template).render(**values))


@cache
def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {"count": "{:,}".format, "human": human, "mark": mark}
    return made


def mark(value: float) -> str:
    """Format a number beside an axis, in at most four digits: `20k`, `1.5M`."""
    for unit, name in ((1_000_000, "M"), (1000, "k")):
        if value >= unit:
            return f"{value / unit:.4g}{name}"
    return f"{value:.4g}"
