"""Text templates: files of the folder `templates/`, in which `@key@` is replaced by a value, or those of Jinja."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tvm_cascade.cores.families import Family

_TEMPLATES = Path(__file__).parent / "templates"


def template(name: str) -> str:
    """Read a file in `templates/`."""
    return (_TEMPLATES / name).read_text(encoding="utf-8")


def template_folder(name: str) -> dict[str, str]:
    """Read all files in a folder in `templates/`, by path relative to that folder."""
    root = _TEMPLATES / name
    return {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in sorted(root.rglob("*")) if p.is_file()}


def fill_template(text: str, values: Mapping[str, str]) -> str:
    """Replace every `@key@` in `text` by its value; values are inserted literally, unknown keys left."""
    return re.sub(r"@(\w+)@", lambda match: values.get(match[1], match[0]), text)


@cache
def _environment() -> Any:
    """Return Jinja's environment of the templates `*.j2`: of text that is not escaped, statements on lines of their own."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined  # of exports alone: `compile` needs none

    return Environment(
        loader=FileSystemLoader(_TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def render(template: str, filters: Mapping[str, Any] | None = None, /, **values: Any) -> str:
    """Render a template of Jinja with `values`; `filters` are its own, by name."""
    jinja = _environment().overlay()
    jinja.filters = {**jinja.filters, **(filters or {})}
    return jinja.get_template(template).render(**values)


_STARTUP_PARTS = ("declarations", "stop", "memory", "print_hex")  # that the families of cores have in common


def startup_source(family: Family) -> str:
    """Write `startup.c` for a family of cores: reset, vector table, faults."""
    parts = {part: template(f"startup_{part}.c.in").removesuffix("\n") for part in _STARTUP_PARTS}
    return fill_template(template(family.startup), parts)
