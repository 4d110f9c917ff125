"""Runs in QEMU on every board: outputs, high-water marks, instruction counts, and the reports of failing images."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.boards.board import available_ram, list_boards, load_board
from tvm_cascade.cores import CORES, get_core
from tvm_cascade.emit import toolchain
from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.errors import MissingToolError, ToolError, UsageError
from tvm_cascade.runs.emulator import FirmwareError, RunResult, run
from tvm_cascade.testing.builds import build

Inputs = list[tuple[np.ndarray, np.ndarray]]
MakeToy = Callable[..., EmittedNetwork]
Execute = Callable[..., RunResult]


@pytest.fixture
def execute(tmp_path: Path, toy_inputs: Inputs) -> Execute:
    """Build a network for a board and run it, by default for the target that suits the board best."""

    def build_and_run(network: EmittedNetwork, board_name: str = "mps2-an386", **options: object) -> RunResult:
        board = load_board(board_name)
        if shutil.which(board.family.gcc) is None or shutil.which(board.family.qemu) is None:
            pytest.skip(f"{board.family.gcc} or {board.family.qemu} is not installed")
        target = get_core(str(options.pop("target", best_target(board.core))))
        elf = build(tmp_path / "p", network, target, board).elf
        return run(elf, board, network.interface, options.pop("inputs", toy_inputs), **options)  # type: ignore[arg-type]

    return build_and_run


def best_target(core: str) -> str:
    return [target.name for target in CORES.values() if core in target.runs_on][-1]


@pytest.mark.parametrize("board", [name for name in list_boards() if load_board(name).qemu_machine])
def test_every_board_computes_and_measures(
    board: str, toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, execute: Execute
) -> None:
    result = execute(toy, board)
    for (output,), (a, b) in zip(result.outputs, toy_inputs, strict=True):
        np.testing.assert_array_equal(output, reference(a, b))
    assert result.arena_high_water_bytes == 72
    assert 16 <= result.stack_bytes <= 160
    assert (result.instructions is None) == (load_board(board).counter is None)


@pytest.mark.parametrize(("board", "target"), [("mps2-an386", "cortex-m0plus"), ("mps3-an547", "cortex-m4")])
def test_larger_cores_run_code_of_smaller_ones(
    board: str, target: str, toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, execute: Execute
) -> None:
    result = execute(toy, board, target=target)
    np.testing.assert_array_equal(result.outputs[2][0], reference(*toy_inputs[2]))


def test_streamed_rows(
    streaming_toy: EmittedNetwork, toy_inputs: Inputs, reference: Callable, execute: Execute
) -> None:
    result = execute(streaming_toy)
    for (output,), (a, b) in zip(result.outputs, toy_inputs, strict=True):
        np.testing.assert_array_equal(output, reference(a, b))


def loop(iterations: int, length: int = 2) -> str:
    """`length` instructions an iteration, and the same number around it whatever `iterations` is. The emulator runs a long
    iteration in hardly more time than a short one."""
    idle = f".rept {length - 2}\\n nop\\n .endr\\n"
    arm = f'__asm__ volatile(".syntax unified\\n1: {idle} subs %0, %0, #1\\n bne 1b" : "+l"(n) : : "cc");'
    riscv = f'__asm__ volatile("1: {idle} addi %0, %0, -1\\n bnez %0, 1b" : "+r"(n));'
    return f"{{ register uint32_t n = {iterations}u;\n#ifdef __riscv\n{riscv}\n#else\n{arm}\n#endif\n}}"


@pytest.mark.parametrize("board", [name for name in list_boards() if load_board(name).counter])
def test_instructions_are_exact(board: str, make_toy: MakeToy, execute: Execute, toy_inputs: Inputs) -> None:
    """Loops of known length: the difference is exact to the rounding of one tick at each end."""
    base, large = 70_000, 5_070_000
    counts = []
    for iterations in (base, large):
        result = execute(make_toy(extra=loop(iterations)), board, inputs=toy_inputs[:1])
        assert result.instructions is not None
        counts.append(result.instructions)
    assert abs(counts[1] - counts[0] - 2 * (large - base)) <= 1


@pytest.mark.parametrize(("board", "millions"), [("mps2-an386", 1400), ("riscv32-virt", 100)])
def test_instructions_beyond_a_wrap(
    board: str, millions: int, make_toy: MakeToy, execute: Execute, toy_inputs: Inputs
) -> None:
    """1.4 G instructions are 4.5 G ticks there, 100 M are 12.8 G here: at least one wrap of 32 bits."""
    counts = []
    for iterations in (1_400, 1_400 + millions * 10_000):
        result = execute(make_toy(extra=loop(iterations, 100)), board, inputs=toy_inputs[:1])
        assert result.instructions is not None
        counts.append(result.instructions)
    assert abs(counts[1] - counts[0] - millions * 1_000_000) <= 1


@pytest.mark.parametrize("depth", [256, 1000])
def test_stack_is_measured(depth: int, make_toy: MakeToy, execute: Execute) -> None:
    body = f"{{ volatile uint8_t deep[{depth}]; deep[0] = 1; deep[{depth - 1}] = deep[0]; }}"
    plain = execute(make_toy()).stack_bytes
    assert plain + depth - 8 <= execute(make_toy(extra=body)).stack_bytes <= plain + depth + 32


@pytest.mark.parametrize("value", ["0xA5", "0x5A", "0"])
def test_arena_high_water_sees_bytes_equal_to_a_pattern(value: str, make_toy: MakeToy, execute: Execute) -> None:
    network = make_toy(arena=200, extra=f"toy_arena[150] = {value};")
    assert execute(network).arena_high_water_bytes == 151


def test_outputs_that_depend_on_stale_memory_are_refused(make_toy: MakeToy, execute: Execute) -> None:
    with pytest.raises(FirmwareError, match="depend on what the arena held before"):
        execute(make_toy(extra="y[0] = (int8_t)toy_arena[75];"))


@pytest.mark.parametrize("board", ["microbit", "mps2-an386", "mps3-an547", "riscv32-virt"])
def test_a_fault_is_reported_with_its_place(board: str, make_toy: MakeToy, execute: Execute) -> None:
    with pytest.raises(FirmwareError, match=r"firmware faulted in (toy_run|main): .*pc=0x"):
        execute(make_toy(extra="__builtin_trap();"), board)


@pytest.mark.parametrize("board", ["stm32vldiscovery", "mps3-an547"])
def test_a_stack_overflow_is_an_error(board: str, make_toy: MakeToy, execute: Execute) -> None:
    recursion = (
        "static int deep(volatile int n);\n"
        "static int deep(volatile int n) { volatile int pad[64]; pad[0] = n; return n ? deep(n - 1) + pad[0] : 0; }\n"
    )
    with pytest.raises(FirmwareError, match="stack"):
        execute(make_toy(prologue="#include <stdint.h>\n" + recursion, extra="y[0] = (int8_t)deep(100000);"), board)


def test_a_stack_that_grows_into_the_data_is_an_error(make_toy: MakeToy, execute: Execute) -> None:
    """No fault tells of it: 600 bytes under the stack of a board that is otherwise full are still RAM."""
    body = "{ volatile uint8_t deep[600]; for (int k = 0; k < 600; ++k) deep[k] = 1; y[0] = (int8_t)deep[9]; }"
    with pytest.raises(FirmwareError, match="stack overflow: the stack has grown into the data"):
        execute(make_toy(arena=7680, extra=body), "stm32vldiscovery")


def test_a_second_memory_takes_the_stack(
    tmp_path: Path, make_toy: MakeToy, toy_inputs: Inputs, reference: Callable, emulator_tools: None
) -> None:
    """The arena may then have all of the first, and a stack that leaves its own is noticed as before."""
    own = json.loads(load_board("mps2-an386").source) | {"name": "own", "stack_reserve": 512}
    own["memory"] |= {"ram": {"origin": "0x20000000", "bytes": 4096}, "stack": {"origin": "0x21000000", "bytes": 1024}}
    (tmp_path / "own.json").write_text(json.dumps(own))
    board = load_board(tmp_path / "own.json")
    target = get_core("cortex-m4")
    network = make_toy(arena=available_ram(board))
    built = build(tmp_path / "p", network, target, board)
    assert (network.arena_bytes, built.ram_bytes) == (4096, 4096)
    result = run(built.elf, board, network.interface, toy_inputs)
    np.testing.assert_array_equal(result.outputs[1][0], reference(*toy_inputs[1]))
    assert result.arena_high_water_bytes == 72 and 16 <= result.stack_bytes <= 160
    body = "{ volatile uint8_t deep[980]; for (int k = 0; k < 980; ++k) deep[k] = 1; y[0] = (int8_t)deep[9]; }"
    deep = make_toy(extra=body)
    elf = build(tmp_path / "deep", deep, target, board).elf
    with pytest.raises(FirmwareError, match="stack"):
        run(elf, board, deep.interface, toy_inputs)
    with pytest.raises(toolchain.MemoryOverflowError, match=r"needs 4104 bytes of ram .0 bytes of stack reserve"):
        build(tmp_path / "more", make_toy(arena=4104), target, board)


def test_a_network_that_returns_an_error(make_toy: MakeToy, execute: Execute) -> None:
    with pytest.raises(FirmwareError, match="the network returned -7"):
        execute(make_toy(extra="if (a[0] || y) return -7;"))


def test_timeout_says_how_far_it_came(make_toy: MakeToy, execute: Execute) -> None:
    with pytest.raises(ToolError, match="ran out of time after 0 of 3 inferences"):
        execute(make_toy(extra="for (volatile int k = 0;;) { k = k; }"), timeout_s=1.0)


def test_bad_calls(toy: EmittedNetwork, toy_inputs: Inputs, execute: Execute) -> None:
    with pytest.raises(UsageError, match="no inputs"):
        execute(toy, inputs=[])
    with pytest.raises(UsageError, match="int16"):
        execute(toy, inputs=[(toy_inputs[0][0].astype(np.int16), toy_inputs[0][1])])


def test_missing_emulator_names_the_remedy(
    tmp_path: Path, toy: EmittedNetwork, toy_inputs: Inputs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingToolError, match="qemu-system-arm is not installed: apt-get install"):
        run(tmp_path / "x.elf", load_board("microbit"), toy.interface, toy_inputs)


@pytest.mark.parametrize("target", ["riscv32", "cortex-m0plus"])
def test_constants_of_the_c_library_are_copied(tmp_path: Path, emulator: None, target: str) -> None:
    """Those of picolibc lie in small sections of data (.sdata, .srodata)."""
    pytest.importorskip("onnx")
    from onnx import helper

    from tvm_cascade.testing.onnx_nodes import check_network

    x = np.linspace(-3, 3, 40, dtype="float32").reshape(1, 40)
    nodes = [helper.make_node(kind, ["x"], [kind]) for kind in ("Tanh", "Sinh", "Cosh", "Atan")]
    wanted = [np.tanh(x), np.sinh(x), np.cosh(x), np.arctan(x)]
    check_network(tmp_path, nodes, {"x": x}, ["Tanh", "Sinh", "Cosh", "Atan"], {}, target=target, wanted=wanted)
