"""Text templates: files in `templates/`, where a value replaces `@key@`, or Jinja templates."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tvm_cascade import text_templates
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


def render(name: str, filters: Mapping[str, Any] | None = None, /, **values: Any) -> str:
    """Render a template of Jinja, by its name; `filters` are its own."""
    return text_templates.render(_TEMPLATES / name, filters, **values)


_STARTUP_PARTS = ("declarations", "stop", "memory", "print_hex")  # that the families of cores have in common


def startup_source(family: Family) -> str:
    """Write `startup.c` for a family of cores: reset, vector table, faults."""
    parts = {part: template(f"startup_{part}.c.in").removesuffix("\n") for part in _STARTUP_PARTS}
    return fill_template(template(family.startup), parts)
