"""Board files: the shipped ones load, a user's own one needs no code, and every mistake is named."""

from __future__ import annotations

import copy
import json
from pathlib import Path

import pytest

from tvm_cascade.boards.board import Counter, CounterRegister, available_ram, list_boards, load_board
from tvm_cascade.cores import CORES, get_core
from tvm_cascade.errors import UsageError

OWN = {
    "name": "own",
    "core": "cortex-m4",
    "memory": {"flash": {"origin": "0x08000000", "bytes": 65536}, "ram": {"origin": 536870912, "bytes": 32768}},
    "stack_reserve": 1024,
}


def write(folder: Path, change: dict | None = None) -> Path:
    """A valid board file with the dotted keys of `change` replaced, or removed where the value is None."""
    data = copy.deepcopy(OWN)
    for dotted, value in (change or {}).items():
        *parents, last = dotted.split(".")
        table = data
        for key in parents:
            table = table[key]
        if value is None:
            del table[last]
        else:
            table[last] = value
    path = folder / "own.json"
    path.write_text(json.dumps(data))
    return path


@pytest.mark.parametrize("name", list_boards())
def test_shipped_board_loads(name: str) -> None:
    board = load_board(name)
    assert board.name == name
    named = (
        {"memory", "memories", "clock"} | ({"current"} if board.supply else set()) | ({"uart"} if board.uart else set())
    )
    assert board.qemu_machine or named <= set(board.sources) <= {*named, "compared"}
    assert board.description
    assert any(board.core in target.runs_on for target in CORES.values())


def test_every_target_has_a_default_board_that_runs_it() -> None:
    for target in CORES.values():
        if target.name != "host":
            load_board(target.default_board).require_target(target)


def test_own_board_file(tmp_path: Path) -> None:
    board = load_board(str(write(tmp_path)))
    assert (board.flash.origin, board.flash.end, board.ram.origin) == (0x08000000, 0x08010000, 0x20000000)
    assert board.counter is None and board.qemu_machine is None and board.uart is None
    assert available_ram(board) == 31744
    assert available_ram(board, 40000) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"core": "z80"}, r"core 'z80' belongs to no known family; known: cortex-m"),
        ({"counter": {"ticks_per_instruction": 1}}, "counter lacks low or csr"),
        ({"name": None}, "lacks name"),
        ({"name": "../x"}, "name must be a name"),
        ({"nmae": "x"}, "unknown key 'nmae'"),
        ({"memory": 5}, "memory must be an object"),
        ({"memory.ram": None}, "memory lacks ram"),
        ({"memory.ram.origin": "here"}, r"memory.ram.origin must be a whole number"),
        ({"memory.ram.bytes": 0}, r"memory.ram.bytes must be a whole number from 1"),
        ({"memory.flash.bytes": 2**33}, r"memory.flash.bytes must be"),
        ({"memory.ram.bytes": True}, r"memory.ram.bytes must be"),
        ({"stack_reserve": 40000}, "stack_reserve must be a whole number from 128 to 32768"),
        ({"stack_reserve": 0}, "stack_reserve must be a whole number from 128 to 32768"),
        ({"memory.ram.origin": "0x08008000"}, r"memory.flash \(0x08000000 to 0x08010000\) and memory.ram .* overlap"),
        ({"memory.vectors": {"origin": "0x20007ff8", "bytes": 64}}, "memory.ram .* and memory.vectors .* overlap"),
        ({"memory.ram.origin": "0x20000004"}, "memory.ram.origin must be a multiple of 8"),
        (
            {"memory.ccm": {"origin": 0, "bytes": 64}},
            "memory has an unknown key 'ccm'; known: flash, ram, vectors, stack",
        ),
        ({"memory.stack": {"origin": "0x20000100", "bytes": 256}}, "memory.ram .* and memory.stack .* overlap"),
        (
            {"memory.stack": {"origin": "0x10000000", "bytes": 512}},
            "stack_reserve must be a whole number from 128 to 512",
        ),
        ({"qemu": {}}, "qemu lacks machine"),
        ({"qemu": {"machine": "x -nographic"}}, "qemu.machine must be a name"),
        ({"counter": {"low": {"address": 0, "bits": 40}, "ticks_per_instruction": 1}}, "counter.low.bits"),
        ({"counter": {"low": {"address": 0, "bits": 32}, "ticks_per_instruction": 0}}, "a positive number"),
        (
            {"counter": {"low": {"address": 0, "bits": 32, "counts": "x"}, "ticks_per_instruction": 1}},
            "counter.low.counts must be up or down",
        ),
        ({"uart": {"kind": "modem", "address": 0}}, "uart.kind must be one of"),
        ({"uart": {"kind": "stm32"}}, "uart lacks address"),
        ({"uart": {"kind": "stm32", "address": 0, "baud": 3}}, "uart.baud must be a whole number from 300"),
        ({"uart": {"kind": "polled", "address": 0}}, "uart lacks receive"),
        (
            {"uart": {"kind": "polled", "receive": {"status": 0, "mask": 0, "data": 0}, "transmit": {}}},
            "uart.receive.mask must be",
        ),
        (
            {"uart": {"kind": "polled", "receive": {"status": 0, "mask": 256, "data": 0, "bits": 8}, "transmit": {}}},
            "uart.receive.mask must be a whole number from 1 to 255",
        ),
        ({"flash_tool": {"jlink": "x"}}, "unknown key 'jlink'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, change: dict, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load_board(write(tmp_path, change))


def test_unknown_missing_and_broken_files(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"unknown board 'nucleo'; known: .*microbit.*path of a board"):
        load_board("nucleo")
    with pytest.raises(UsageError, match=r"none\.json: No such file"):
        load_board(tmp_path / "none.json")
    broken = tmp_path / "broken.json"
    broken.write_text("{")
    with pytest.raises(UsageError, match="is no JSON"):
        load_board(broken)
    broken.write_text('{"name": "a", "name": "b"}')
    with pytest.raises(UsageError, match="the key 'name' comes twice"):
        load_board(broken)
    broken.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="is no JSON"):
        load_board(broken)
    broken.write_text("[]")
    with pytest.raises(UsageError, match="must be an object"):
        load_board(broken)


def test_board_refuses_a_target_beyond_its_core() -> None:
    with pytest.raises(UsageError, match="cortex-m0, which cannot run code for cortex-m4"):
        load_board("microbit").require_target(get_core("cortex-m4"))
    with pytest.raises(UsageError, match="unknown target 'cortex-m9'; known: cortex-m0plus"):
        get_core("cortex-m9")


@pytest.mark.parametrize("down", [False, True])
@pytest.mark.parametrize("bits", [24, 32])
def test_counter_sees_through_wraps(bits: int, down: bool) -> None:
    """Against a simulated pair of registers, for durations from nothing to hundreds of wraps."""
    counter = Counter(CounterRegister(0, bits, down), 1.0, CounterRegister(4, 32, low_ticks=1000))

    def at(tick: int) -> tuple[int, int]:
        return (-tick if down else tick) % (1 << bits), tick // 1000 % (1 << 32)

    for start in (0, 999, (1 << bits) - 1):
        for elapsed in (0, 1, 1999, (1 << bits) - 1, 1 << bits, (1 << bits) + 1, 333 * (1 << bits) + 17):
            (low, coarse), (low_after, coarse_after) = at(start), at(start + elapsed)
            assert counter.ticks((low, low_after), (coarse, coarse_after)) == elapsed


def test_counter_without_coarse_register_counts_up_to_one_wrap() -> None:
    counter = Counter(CounterRegister(0, 32), 1.0)
    assert counter.ticks((0xFFFFFFF0, 0x10), (0, 0)) == 0x20
