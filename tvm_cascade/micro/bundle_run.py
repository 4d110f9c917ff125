"""Running a bundle: the image of several networks on its emulated board, each compared with its own host program.

Arrays are named `network/tensor`, as in `fw1/image`, in files of inputs and outputs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tvm_cascade.errors import LoadError, UsageError
from tvm_cascade.micro import emulator
from tvm_cascade.micro.bundle import NAME, Bundle, build_bundle, read_bundle
from tvm_cascade.micro.firmware import HOST_FOLDER
from tvm_cascade.micro.host import HostProgram, run_host
from tvm_cascade.micro.measure import (
    EMULATOR_S,
    PORT_S,
    RunReport,
    load_arrays,
    random_inputs,
    same_outputs,
    save_arrays,
)
from tvm_cascade.micro.project import METADATA, find_board
from tvm_cascade.micro.serial_run import run_serial
from tvm_cascade.micro.toolchain import require_uart


@dataclass(frozen=True, slots=True)
class _HostSide:
    """What the networks compute in this process."""

    outputs: Mapping[str, np.ndarray]
    executed_macs: int
    planned_macs: int
    high_water: int


def run_bundle(
    folder: Path,
    board: str | None,
    inputs: str | Path | Mapping[str, np.ndarray] | None,
    outputs: str | Path | None,
    check: str | Path | None,
    port: str | None,
    timeout_s: float | None,
    progress: Callable[[str], None],
) -> RunReport:
    """One inference of every network of the bundle in `folder`; see `tvm_cascade.run`.

    Raises
    ------
    UsageError
        For what a bundle cannot do: a reference of one network.
    """
    if check is not None:
        raise UsageError("a bundle is checked network by network: run each project with --check before bundling")
    bundle = read_bundle(folder)
    feed = _feed(bundle, inputs)
    progress(f"{NAME}: running {len(bundle.networks)} networks in this process, counting work")
    host = _on_host(bundle, feed)
    where = port or board or bundle.board
    if port is not None:
        made, high, stack, instructions = _over_port(bundle, port, board or bundle.board, feed, timeout_s, progress)
    elif where == "host":
        made, high, stack, instructions = dict(host.outputs), host.high_water, None, None
    else:
        made, high, stack, instructions = _emulate(bundle, where, feed, timeout_s, progress)
    report = RunReport(
        board=where,
        outputs=made,
        arena_bytes=bundle.arena_bytes,
        arena_high_water_bytes=high,
        stack_bytes=stack,
        executed_macs=host.executed_macs,
        planned_macs=host.planned_macs,
        instructions=instructions,
        equals_host=same_outputs(host.outputs, made),
        match=None,
        max_abs_diff=None,
    )
    if outputs is not None:
        save_arrays(Path(outputs), made)
    return report


def _feed(bundle: Bundle, inputs: str | Path | Mapping[str, np.ndarray] | None) -> dict[str, np.ndarray]:
    """Every input of every network by `network/tensor`."""
    given = None if inputs is None else inputs if isinstance(inputs, Mapping) else load_arrays(inputs)
    feed: dict[str, np.ndarray] = {}
    for network in bundle.networks:
        drawn = random_inputs(network)
        for spec in network.interface.inputs:
            name = f"{network.name}/{spec.name}"
            if given is not None and name not in given:
                raise UsageError(f"no input '{name}' among {', '.join(given) or 'none'}")
            value = np.asarray(drawn[spec.name] if given is None else given[name])
            if str(value.dtype) != spec.dtype or value.nbytes != spec.bytes:
                want = f"{spec.dtype}{list(spec.shape)}"
                raise UsageError(f"input '{name}' is {value.dtype}{list(value.shape)}, the network wants {want}")
            feed[name] = value.reshape(spec.shape)
    return feed


def _on_host(bundle: Bundle, feed: Mapping[str, np.ndarray]) -> _HostSide:
    path = bundle.folder / METADATA
    hosts = json.loads(path.read_text(encoding="utf-8"))["bundle"].get("hosts", {})
    made: dict[str, np.ndarray] = {}
    executed = planned = high = 0
    for network in bundle.networks:
        if network.name not in hosts:
            raise LoadError(path, f"has no host program of {network.name}; compile and bundle again")
        own, program = hosts[network.name], bundle.folder / HOST_FOLDER / network.name
        arrays = {s.name: feed[f"{network.name}/{s.name}"] for s in network.interface.inputs}
        done = run_host(HostProgram.load(program, own["host"]), [arrays])
        made |= {f"{network.name}/{name}": array for name, array in done.outputs[0].items()}
        executed, planned = executed + done.executed_macs, planned + int(own["macs"])
        high = max(high, done.arena_high_water)
    return _HostSide(made, executed, planned, high)


def _over_port(
    bundle: Bundle,
    port: str,
    board_name: str,
    feed: Mapping[str, np.ndarray],
    timeout_s: float | None,
    progress: Callable[[str], None],
) -> tuple[dict[str, np.ndarray], int, int, None]:
    """One network after the other, on the board behind `port`."""
    board = find_board(bundle.folder, board_name)
    require_uart(board)
    baud = board.uart.baud if board.uart else 0
    elf = bundle.folder / "build" / f"{board.name}-serial" / f"{NAME}.elf"
    made: dict[str, np.ndarray] = {}
    high = stack = 0
    for k, network in enumerate(bundle.networks):
        progress(f"{NAME}: running {network.name} on the board at {port}")
        arrays = [feed[f"{network.name}/{spec.name}"] for spec in network.interface.inputs]
        done = run_serial(
            port,
            network.interface,
            [arrays],
            baud,
            timeout_s or PORT_S,
            elf=elf,
            prefix=board.family.prefix,
            select=k,
        )
        for spec, array in zip(network.interface.outputs, done.outputs[0], strict=True):
            made[f"{network.name}/{spec.name}"] = array
        high, stack = max(high, done.arena_high_water_bytes), max(stack, done.stack_bytes)
    return made, high, stack, None


def _emulate(
    bundle: Bundle,
    where: str,
    feed: Mapping[str, np.ndarray],
    timeout_s: float | None,
    progress: Callable[[str], None],
) -> tuple[dict[str, np.ndarray], int, int | None, int | None]:
    board = find_board(bundle.folder, where)
    elf = build_bundle(bundle, board, unless_current=progress).elf
    progress(f"{NAME}: emulating {board.name}")
    result = emulator.run(elf, board, bundle, [list(feed.values())], timeout_s or EMULATOR_S)
    names = [f"{n.name}/{s.name}" for n in bundle.networks for s in n.interface.outputs]
    made = dict(zip(names, result.outputs[0], strict=True))
    return made, result.arena_high_water_bytes, result.stack_bytes, result.instructions
