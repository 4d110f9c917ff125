"""The directive `options`: usage, arguments and options of a command, read from its definition.

```{options} plan
```
"""

from __future__ import annotations

from typing import ClassVar

import click
from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from cascade_site.tables import inline


class Options(SphinxDirective):
    """Usage of the command and a table of its options."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        from tvm_cascade.cli.group import tvm_cascade

        name = self.arguments[0]
        command = tvm_cascade.commands[name]
        context = click.Context(command, info_name=f"tvm-cascade {name}")
        usage = nodes.literal_block(text := command.get_usage(context), text)
        usage["language"] = "none"
        listed = nodes.definition_list(classes=["options"])
        for parameter in command.params:
            record = parameter.get_help_record(context)
            if record is not None:
                listed += _entry(*record)
        return [usage, listed]


def _entry(spelled: str, help: str) -> nodes.definition_list_item:
    term = nodes.term("", "", nodes.literal(spelled, spelled))
    return nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", "", *inline(help))))


def setup(app: Sphinx) -> None:
    app.add_directive("options", Options)
