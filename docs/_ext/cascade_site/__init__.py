"""Sphinx extension of the documentation site.

It runs the commands that pages show and prints what they print (`terminal`), draws figures from real plans (`figures`), makes
tables of what the code knows (`tables`), and takes in pages that stand elsewhere in the repository (`pages`).
"""

from __future__ import annotations

from typing import Any

from sphinx.application import Sphinx

from cascade_site import figures, gallery, options, pages, tables, terminal


def setup(app: Sphinx) -> dict[str, Any]:
    """Register all parts; see the Sphinx manual for what is returned."""
    for part in (pages, terminal, options, tables, figures, gallery):
        part.setup(app)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
