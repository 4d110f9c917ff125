"""Texts from templates of Jinja (`*.j2`): nothing is escaped, and statements stand on lines of their own."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any


def render(template: Path, filters: Mapping[str, Any] | None = None, /, **values: Any) -> str:
    """Render a template with `values`; `filters` are its own, by name."""
    jinja = _environment(template.parent).overlay()
    jinja.filters = {**jinja.filters, **(filters or {})}
    return jinja.get_template(template.name).render(**values)


@cache
def _environment(folder: Path) -> Any:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # of exports alone: `compile` needs none

    options: dict[str, Any] = dict(trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True)
    return Environment(loader=FileSystemLoader(folder), undefined=StrictUndefined, **options)
