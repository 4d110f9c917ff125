"""Audit a linked image for `compile --require no-heap` and `no-float`: its symbols, and the instructions of its functions."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.cores.families import Family
from tvm_cascade.emit.elf import audited_symbols
from tvm_cascade.emit.stack_bound import read_functions
from tvm_cascade.emit.toolchain import find_tool, run_tool
from tvm_cascade.errors import AuditError
from tvm_cascade.graph import Graph
from tvm_cascade.messages import short_name

AUDITS = ("no-heap", "no-float")
_FUNCTION = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_ARITHMETIC = re.compile(  # of floats in hardware: by Arm's names, and by RISC-V's
    r"^\s*[0-9a-f]+:\t[^\t]*\t(v(?!mov|ldr|str|dup|push|pop|msr|mrs)\w+(?:\.\w+)*?\.f(?:16|32|64)(?:\.\w+)?"
    r"|f(?:add|sub|mul|div|n?m(?:add|sub)|sqrt|cvt|min|max)\.[\w.]+)\t"
)
_LEAVE_OUT = "or leave --require {} out"


@dataclass(frozen=True, slots=True)
class Finding:
    """A function or an instruction that an image must not have."""

    symbol: str
    callers: tuple[str, ...]


def require_audited(elf: Path, family: Family, required: Collection[str], graph: Graph) -> None:
    """Audit the image of a network.

    Raises `AuditError` for a heap with "no-heap" in `required`, and for floats with "no-float".
    """
    if not {*required} & {*AUDITS}:
        return
    symbols = audited_symbols(elf)
    listing = _listing(elf, family)
    if "no-heap" in required and symbols["heap"]:
        found = [Finding(name, _callers(listing(), name)) for name in symbols["heap"]]
        remedy = f"give that function memory of its own, {_LEAVE_OUT.format('no-heap')}"
        raise AuditError(f"--require no-heap: {_told(found, 'manages a heap')}; {remedy}")
    if "no-float" in required and (found := [*_floats(listing, symbols["soft_float"])]):
        layers = _float_layers(graph)
        raise AuditError(
            f"--require no-float: {_told(found, 'computes floats')}; {_float_remedy(layers)}",
            [name for name, _ in layers],
        )


def _listing(elf: Path, family: Family) -> Callable[[], str]:
    """Return a function that disassembles an image at its first call."""
    kept: list[str] = []

    def listing() -> str:
        if not kept:
            tool = find_tool(f"{family.prefix}objdump", family.compiler_remedy)
            # objdump 2.40 does not know Helium by the file's attributes
            newest = ("-marmv8.1-m.main",) if family.name == "arm" else ()
            kept.append(run_tool((tool, *newest, "-t", "-d", str(elf))))
        return kept[0]

    return listing


def _floats(listing: Callable[[], str], soft: Sequence[str]) -> Iterator[Finding]:
    """Yield functions of libgcc that compute floats, then the first instruction on floats of each function."""
    for name in soft:
        if callers := tuple(c for c in _callers(listing(), name) if c not in soft):
            yield Finding(name, callers)
    name, told = "", set()
    for line in listing().splitlines():
        if head := _FUNCTION.match(line):
            name = head[1]
        elif name not in told and (code := _ARITHMETIC.match(line)):
            told.add(name)
            yield Finding(code[1], (name,))


def _callers(listing: str, name: str) -> tuple[str, ...]:
    """List the functions that call `name`, sorted."""
    return tuple(sorted(k for k, f in read_functions(listing).items() if name in f.calls))


def _told(found: Sequence[Finding], does: str) -> str:
    first, *others = found
    by = f", called by {' and '.join(first.callers[:2])}" if first.callers else ""
    by = f" in {first.callers[0]}" if first.symbol[0] in "vf" and "." in first.symbol else by
    return f"the image has {first.symbol}{by}, which {does}" + (f" ({len(others)} more)" if others else "")


def _float_layers(graph: Graph) -> list[tuple[str, bool]]:
    """List layers that read or write floats, and whether they only convert between floats and integers."""
    layers = []
    for op in graph.ops:
        kinds = [graph.tensors[t].dtype.startswith(("float", "bfloat")) for t in (*op.inputs, *op.outputs)]
        if any(kinds) and not op.view:
            layers.append((op.name, not all(kinds)))
    return layers


def _float_remedy(layers: Sequence[tuple[str, bool]]) -> str:
    leave = _LEAVE_OUT.format("no-float")
    if not layers:
        return f"no layer has floats at its ends, so one computes in floats inside: another --target, {leave}"
    named = ", ".join(short_name(name) for name, _ in layers[:3]) + (
        f" and {len(layers) - 3} more" if len(layers) > 3 else ""
    )
    if all(converts for _, converts in layers):
        return f"layers that convert floats: {named}; --stored-io leaves them to the application, {leave}"
    return f"layers of floats: {named}; quantize the network (tvm-cascade quantize), {leave}"
