"""What the code knows: the directive `table-of` with `boards`, `cores`, `figures`, `modules` or `operators`, and `list-of` with
`tflite-quantized`, `tflite-float`, `tflite-hybrid` or `onnx`, which lists the operators of these files that are read."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import ClassVar

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

Rows = Sequence[Sequence[str]]


class TableOf(SphinxDirective):
    """A table with a row for each thing of its kind; its first row holds the titles."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        rows = TABLES[self.arguments[0]]()
        return [table(rows)]


class ListOf(SphinxDirective):
    """Names in one paragraph."""

    required_arguments = 1
    option_spec: ClassVar = {}

    def run(self) -> list[nodes.Node]:
        names = LISTS[self.arguments[0]]()
        return [nodes.paragraph("", "", *inline(", ".join(f"`{name}`" for name in names)))]


def table(rows: Rows) -> nodes.table:
    """Rows as a table; what stands between backticks is code."""
    columns = len(rows[0])
    group = nodes.tgroup("", *(nodes.colspec(colwidth=1) for _ in range(columns)), cols=columns)
    group += nodes.thead("", _row(rows[0]))
    group += nodes.tbody("", *(_row(row) for row in rows[1:]))
    return nodes.table("", group)


def _row(cells: Iterable[str]) -> nodes.row:
    return nodes.row("", *(nodes.entry("", nodes.paragraph("", "", *inline(cell))) for cell in cells))


def inline(text: str) -> list[nodes.Node]:
    """A text; what stands between backticks is code."""
    parts = text.split("`")
    return [nodes.literal(p, p) if k % 2 else nodes.Text(p) for k, p in enumerate(parts) if p]


def boards() -> Rows:
    from tvm_cascade.boards.board import list_boards, load_board
    from tvm_cascade.boards.target_table import programmers

    rows = [("target or board", "core", "clock", "flash", "RAM", "emulated as", "serial port", "flashed by")]
    for board in map(load_board, list_boards()):
        ram = ", ".join(f"{name} {_kib(one.bytes)}" for name, one in board.memories.items()) or _kib(board.ram.bytes)
        rows.append(
            (
                f"`{board.name}`",
                board.core,
                "" if board.clock is None else f"{board.clock / 1e6:g} MHz",
                _kib(board.flash.bytes),
                ram,
                board.qemu_machine or "",
                board.uart.kind if board.uart else "",
                ", ".join(programmers(board)),
            )
        )
    return rows


def figures() -> Rows:
    """What the files of microcontrollers say of their memories, with the documents that say so."""
    from tvm_cascade.boards.board import list_boards, load_board

    rows = [("target", "figures", "source")]
    for board in map(load_board, list_boards()):
        for key, text in board.sources.items():
            rows.append((f"`{board.name}`", key, text))
    return rows


def cores() -> Rows:
    from tvm_cascade.cores import CORES

    rows = [
        (
            "target",
            "instructions",
            "kernels",
            "rule sets",
            "board by default",
            "microcontrollers, by the begin of their names",
        )
    ]
    for core in CORES.values():
        has = [name for name, yes in (("DSP", core.dsp), ("MVE", core.mve), ("FPU", core.fpu)) if yes]
        emitted = {"c": "C", "obj": "LLVM object"}[core.backend]
        rows.append(
            (
                f"`{core.name}`",
                ", ".join(has),
                emitted,
                ", ".join(core.rules),
                f"`{core.default_board}`",
                ", ".join(core.parts),
            )
        )
    return rows


def operators() -> Rows:
    from tvm_cascade.operators.table import OPERATORS

    rows = [("operator", "family", "other names", "traits")]
    for name, one in OPERATORS.items():
        if name == one.kind:
            rows.append((f"`{name}`", one.family.value, ", ".join(f"`{n}`" for n in one.also), _traits(one)))
    return rows


def _traits(one: object) -> str:
    told = {
        "activation": "activation",
        "elementwise": "element-wise",
        "movable": "crosses a maximum",
        "commutative": "commutative",
        "mergeable": "merges into one stage",
        "view": "copies nothing",
        "takes_parts": "reads the parts of a concat",
        "splits_reduction": "sums in parts",
    }
    return ", ".join(text for trait, text in told.items() if getattr(one, trait))


def hybrid() -> Sequence[str]:
    """Operators of `.tflite` files that are read with float activations and int8 weights."""
    from tvm_cascade.importers.tflite.converter import HYBRID

    return sorted(HYBRID)


def tflite(quantized: bool) -> Sequence[str]:
    """Operators of `.tflite` files that are read quantized and float, or only float."""
    from tvm_cascade.importers.tflite.converter import Converter
    from tvm_cascade.importers.tflite.load import supported_operators

    return [name for name in supported_operators() if (name in Converter._SUPPORTED_QUANTIZED_OPS) == quantized]


def modules() -> Rows:
    """Return every module of the product with the first sentence of its docstring (`tools/index.py`)."""
    spec = importlib.util.spec_from_file_location("index", Path(__file__).parents[3] / "tools" / "index.py")
    assert spec is not None and spec.loader is not None
    index = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(index)
    return [("module", "what it is for"), *((f"`{name}`", sentence) for name, sentence in index.modules())]


def onnx() -> Sequence[str]:
    from tvm.relax.frontend.onnx.onnx_frontend import _get_convert_map

    from tvm_cascade.importers.onnx.converters import CONVERTERS

    return sorted({*_get_convert_map(), *CONVERTERS})


def _kib(size: int) -> str:
    return f"{size // 1024} KiB" if size % 1024 == 0 else f"{size} bytes"


TABLES: dict[str, Callable[[], Rows]] = {
    "boards": boards,
    "cores": cores,
    "figures": figures,
    "modules": modules,
    "operators": operators,
}
LISTS: dict[str, Callable[[], Sequence[str]]] = {
    "tflite-quantized": lambda: tflite(quantized=True),
    "tflite-float": lambda: tflite(quantized=False),
    "tflite-hybrid": hybrid,
    "onnx": onnx,
}


def setup(app: Sphinx) -> None:
    app.add_directive("table-of", TableOf)
    app.add_directive("list-of", ListOf)
