"""Figures, drawn from real plans while the site is built: the directive `figure-of` with `ring`, `tile` or `arena`.

They are SVG inside of the page, so that `_static/figures.css` gives them the colours of its theme, light or dark.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from html import escape
from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from cascade_site.arena_figure import arena_figure
from cascade_site.ring_figure import ring_figure
from cascade_site.tile_figure import tile_figure

FIGURES: dict[str, Callable[[], tuple[str, str]]] = {"ring": ring_figure, "tile": tile_figure, "arena": arena_figure}


class FigureOf(SphinxDirective):
    """A figure by its name, with the content as caption; `{...}` in it are values that the figure knows."""

    required_arguments = 1
    has_content = True
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        svg, alternative = _drawn(self.arguments[0])
        drawing = nodes.raw(
            "", f'<div class="drawing" role="img" aria-label="{escape(alternative)}">{svg}</div>', format="html"
        )
        caption = nodes.caption("", " ".join(self.content))
        return [nodes.figure("", drawing, caption)]


@cache
def _drawn(name: str) -> tuple[str, str]:
    return FIGURES[name]()


def setup(app: Sphinx) -> None:
    app.add_directive("figure-of", FigureOf)
