"""Machines as targets: `--target stm32f746ng` is the core, the memories and the clock of a microcontroller or a board.

A machine is described by a board file (`boards.board`). As a target it stands for its core, and for `--board` with the
same name. The network lies in the machine's memories if there are several and nothing else is asked for; estimates use
the machine's clock and flash waits. A memory named without a size is the board's whole memory, at the board's cost.
"""

from __future__ import annotations

from dataclasses import replace
from difflib import get_close_matches
from itertools import takewhile

from tvm_cascade.boards.board import Board, board_aliases, list_boards, load_board
from tvm_cascade.cores import CORES, Core, get_core
from tvm_cascade.errors import UsageError
from tvm_cascade.machine import Ram, require_size
from tvm_cascade.request import PlanRequest, Request

_ALIKE = 0.5  # least likeness of names that may be meant
_FAMILY = 5  # characters that names of a family begin with alike, at least
_NEAR = 3  # names at most that are suggested


def target_names() -> tuple[str, ...]:
    """List all names accepted by `--target`: cores, then machines. Aliases (`board_aliases`) are accepted too."""
    return (*CORES, *list_boards())


def core_of(board: Board) -> Core:
    """Return the target for a board: the board's own core, or the target that uses most of the core's instructions."""
    fitting = [one for one in CORES.values() if board.core in one.runs_on]
    own = [one for one in fitting if one.name == board.core]
    return min(own or fitting, key=lambda one: len(one.runs_on))


def machine_of(target: str) -> Board | None:
    """Find the machine named by a target, in upper or lower case, or by the path of a file; None for a core.

    Raises `UsageError` for an unknown target.
    """
    if target in CORES:
        return None
    if target.endswith(".json"):
        return load_board(target)
    if target.lower() in (*list_boards(), *board_aliases()):
        return load_board(target.lower())
    try:
        get_core(target)  # says what is known
    except UsageError as error:
        near = _near(target.lower())
        meant = f"; did you mean {' or '.join(near)}?" if near else ";"
        raise UsageError(f"{error}{meant} `tvm-cascade targets` lists microcontrollers and boards") from None
    return None


def _near(given: str) -> list[str]:
    """Return similar names: names that begin so, else names in the same family, else names close in spelling."""
    names = (*list_boards(), *board_aliases())
    begun = [name for name in names if name.startswith(given)]
    common = {
        name: len([*takewhile(lambda pair: pair[0] == pair[1], zip(name, given, strict=False))]) for name in names
    }
    most = max(common.values())
    family = [name for name in names if common[name] == most >= _FAMILY]
    return (begun or family or get_close_matches(given, names, _NEAR, _ALIKE))[:_NEAR]


def with_core(request: Request) -> tuple[Request, Board | None]:
    """Resolve a target that names a machine: return the request for the machine's core, and the machine; None for a
    core.

    Raises `UsageError` for an unknown target, and for `--board` beside a machine.
    """
    machine = machine_of(request.target)
    if machine is None:
        return request, None
    if request.emit.board not in (None, request.target, machine.name):
        raise UsageError(
            f"--target {request.target} is a machine of its own: leave --board out, or give the core, "
            f"--target {core_of(machine).name}"
        )
    named = request.target if request.target.endswith(".json") else machine.called or machine.name
    emit, plan = replace(request.emit, board=named), request.plan
    one_arena = plan.sram is not None or plan.ram is not None
    if len(machine.memories) > 1 and not plan.memory and not one_arena:
        plan = replace(plan, memory=tuple(Ram(name) for name in machine.memories))
    return replace(request, target=core_of(machine).name, emit=emit, plan=plan), machine


def on_board(request: Request, board: Board | None) -> Request:
    """Fill the request in from the board's file: memories' sizes, costs and addresses, the clock, flash waits.

    Raises `UsageError` for a memory the board lacks or has too small, and for a memory objective without any memory.
    """
    time, plan = request.time, request.plan
    if board is not None:
        clock = board.clock if time.clock is None else time.clock
        wait = board.flash.cycles_per_byte if plan.flash_wait is None else plan.flash_wait
        watts = time.watts
        if watts is None and board.supply is not None and clock == board.clock:
            watts = board.supply.watts
        time, plan = replace(time, clock=clock, watts=watts), replace(plan, flash_wait=wait or None)
    return replace(request, plan=_placed(plan, board), time=time)


def _placed(plan: PlanRequest, board: Board | None) -> PlanRequest:
    if plan.objective != PlanRequest().objective and not plan.memory:
        raise UsageError(f"--objective {plan.objective} is of blocks in several memories: give --memory too")
    made: list[Ram] = []
    for ram in plan.memory:
        if board is None:
            require_size(ram)
            made.append(ram)
            continue
        if ram.name not in board.memories:
            names = ", ".join(board.memories) or "none that its file names"
            raise UsageError(f"--memory {ram.name}: board {board.name} has {names}")
        own = board.memories[ram.name]
        if ram.capacity is not None and ram.capacity > own.bytes:
            raise UsageError(f"--memory {ram}: the board's {ram.name} has {own.bytes} bytes")
        if ram.capacity is None:
            cost = ram.cycles_per_byte if own.cycles_per_byte is None else own.cycles_per_byte
            ram = replace(ram, capacity=board.usable(ram.name), cycles_per_byte=cost)
        made.append(replace(ram, address=own.origin))
    return replace(plan, memory=tuple(made))
