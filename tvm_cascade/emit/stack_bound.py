"""A bound on the stack of a linked image, from the code: the frames along the longest chain of calls.

The image is disassembled. A function's frame is at most the sum of everything taken off the stack pointer; calls, and
jumps into functions, are the edges of the call graph. A call through a pointer, as to a hook or to a function that
gives input rows, may reach every function no instruction calls: the linker keeps only functions with a taken address,
and exception handlers. There is no bound if a function can call itself, or moves the stack pointer by a computed
amount. One exception is counted, with the registers stored by the core; an application has to add the needs of handlers
and hooks.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tvm_cascade.cores.families import Family
from tvm_cascade.emit.toolchain import find_tool, run_tool
from tvm_cascade.errors import ToolError

_ENTRY = "Reset_Handler"
_EXCEPTION = 112  # bytes, of what a core with an FPU stores: 26 registers, aligned
_ALIGN = 8

_FUNCTION = re.compile(r"^[0-9a-f]+ <([^>]+)>:$")
_LINE = re.compile(r"^\s*[0-9a-f]+:\t[^\t]*\t(\S+)(?:\t(.*))?$")
_COMMENT = re.compile(r"\s*(@|;|# ).*")
_TARGET = re.compile(r"<([^+>]+)(?:\+0x[0-9a-f]+)?>")
_SYMBOL = re.compile(r"^[0-9a-f]+ .{6}F [^\t]+\t[0-9a-f]+ (?:\.hidden )?(\S+)$")  # of a function, by objdump -t
_SAVED = re.compile(r"__riscv_(save|restore)_(\d+)$")  # routines that take a caller's frame, and give it back
_MOST_SAVED = 64  # bytes that those take, of which some give back a part at once
_FEW_SAVED = 16  # the same for up to four registers
_WIDTHS = {"s": 4, "d": 8, "q": 16}  # bytes of vector registers


@dataclass
class Function:
    """A function of an image."""

    frame: int  # bytes, at most
    calls: set[str]
    why: str = ""  # it has no bound; empty where it has one
    by_pointer: str = ""  # "calls" or "jumps", as switches do, through a pointer
    is_code: bool = False  # the symbol table says so; constants may lie among the code


class NoStackBoundError(ToolError):
    """An image without a stack bound derivable from code."""


def stack_bound(elf: Path, family: Family) -> int:
    """Return the most bytes of stack needed by an image, from the first instruction on.

    Raises `NoStackBoundError` if the code gives no bound, `MissingToolError` without the target's binutils.
    """
    tool = find_tool(f"{family.prefix}objdump", family.compiler_remedy)
    functions = read_functions(run_tool((tool, "-t", "-d", str(elf))))
    return -(-(deepest(functions) + _EXCEPTION) // _ALIGN) * _ALIGN


def deepest(functions: Mapping[str, Function]) -> int:
    """Sum the frames along the longest chain of calls from the entry, in bytes."""
    known: dict[str, int] = {}
    open_: list[str] = []
    called = {_ENTRY, *(callee for function in functions.values() for callee in function.calls)}
    uncalled = [name for name, function in functions.items() if function.is_code and name not in called]

    def depth(name: str) -> int:
        if name in open_:
            raise NoStackBoundError(f"the stack has no bound: {' calls '.join([*open_[open_.index(name) :], name])}")
        function = functions.get(name)
        if function is None:
            return 0
        if name not in known:
            if function.by_pointer == "calls" and not any(f.is_code for f in functions.values()):
                raise NoStackBoundError(f"the stack has no bound: {name} calls through a pointer")
            if function.why:
                raise NoStackBoundError(f"the stack has no bound: {name} {function.why}")
            open_.append(name)
            reached = set(function.calls)
            if function.by_pointer:
                reached |= {u for u in uncalled if function.by_pointer == "calls" or u not in open_}
            known[name] = function.frame + max((depth(callee) for callee in sorted(reached)), default=0)
            open_.pop()
        return known[name]

    return depth(_ENTRY)


def read_functions(disassembly: str) -> dict[str, Function]:
    """Read functions from a symbol table and a disassembly by objdump."""
    found: dict[str, Function] = {}
    name = ""
    for text in disassembly.splitlines():
        if symbol := _SYMBOL.match(text):
            found[symbol[1]] = Function(0, set(), is_code=True)
        elif head := _FUNCTION.match(text):
            name = head[1]
            found.setdefault(name, Function(0, set()))
        elif name and not _SAVED.match(name) and (line := _LINE.match(text)):
            _read(found[name], name, line[1], _COMMENT.sub("", line[2] or ""))
    return found


def _read(function: Function, name: str, code: str, operands: str) -> None:
    """Take a single instruction into account."""
    taken = _taken(code, operands)
    if taken is None:
        function.why = f"moves its stack pointer by what it computes ({code} {operands})"
    else:
        function.frame += taken
    if not _branches(code):
        return
    target = _TARGET.search(operands)
    if target is not None:
        if saved := _SAVED.match(target[1]):
            few = int(saved[2]) < 4
            function.frame += (_FEW_SAVED if few else _MOST_SAVED) if saved[1] == "save" else 0
        elif target[1] != name:
            function.calls.add(target[1])
    elif re.match(r"blx?|bx|j|c\.j", code) and not re.match(r"(lr|ra|t0|zero|x0)\b", operands):
        function.by_pointer = "calls" if re.match(r"blx|jalr|c\.jalr", code) else function.by_pointer or "jumps"


def _branches(code: str) -> bool:
    return re.match(r"b|cb|j|c\.j|tail|call", code) is not None and not re.match(r"bic|bfi|bfc|bkpt", code)


def _taken(code: str, operands: str) -> int | None:
    """Return the bytes an instruction takes off the stack pointer, 0 if it gives back; None if unknown."""
    if code.startswith(("push", "vpush")) or (re.match(r"(v?stmdb|vstmdb)", code) and operands.startswith("sp!")):
        return _listed(operands)
    if code.startswith("cm.push"):
        return None
    if re.match(r"(v?str)", code) and (before := re.search(r"\[sp, #-(\d+)\]!", operands)):
        return int(before[1])
    if re.match(r"subs?(\.w)?$|subw$", code) and re.match(r"sp\b", operands):
        amount = re.search(r"#(\d+)", operands)
        return int(amount[1]) if amount else None
    if re.match(r"(c\.)?addi?(16sp)?$", code) and (moved := re.match(r"sp,(?:sp,)?(-?\d+)$", operands)):
        return max(0, -int(moved[1]))
    moves = re.match(r"(c\.)?(mov|mv|add|addi|and|bic|msr|ldr|lw)(\.w|w|s)?$", code) and re.match(r"m?sp\b", operands)
    return 0 if not moves or _gives_back(code, operands) else None


def _gives_back(code: str, operands: str) -> bool:
    """Return True if an instruction on the stack pointer adds a constant, or restores the pointer from a frame pointer."""
    plain = re.match(r"sp, ?(sp, ?)?#?\d+$", operands) or re.match(r"sp, ?(r7|fp|s0), ?#?-?\d+$", operands)
    return plain is not None or (code.startswith(("mov", "mv")) and re.match(r"sp, ?\w+$", operands) is not None)


def _listed(operands: str) -> int:
    """Count the bytes of a register list, such as `{r4-r7, lr}`."""
    total = 0
    for part in re.sub(r".*\{|\}.*", "", operands).split(","):
        low, _, high = part.strip().partition("-")
        count = int(high[1:]) - int(low[1:]) + 1 if high else 1
        total += count * (_WIDTHS.get(low[:1], 4) if low[1:].isdigit() else 4)
    return total
