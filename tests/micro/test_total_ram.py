"""A cap on all RAM of an image: the stack's bound is that of its calls, and the linked image obeys the cap or is refused."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

import tvm_cascade
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.elf import read_sections
from tvm_cascade.emit.stack_bound import NoStackBoundError, deepest, read_functions
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.passes.cascade import Cascade
from tvm_cascade.request import PlanRequest

MODEL = Path(str(files("tvm_cascade.testing") / "data" / "shapes.tflite"))
CALLS = """
00000000 <Reset_Handler>:
       0:\tb510      \tpush\t{r4, lr}
       2:\tf7ff fffe \tbl\t100 <a>
       6:\te7fe      \tb.n\t6 <Reset_Handler+0x6>

00000100 <a>:
     100:\te92d 4ff0 \tstmdb\tsp!, {r4, r5, r6, r7, r8, r9, sl, fp, lr}
     104:\tb08d      \tsub\tsp, #52\t@ 0x34
     106:\ted2d 8b04 \tvpush\t{d8-d9}
     10a:\tf7ff fffe \tbl\t200 <b>
     10e:\tb00d      \tadd\tsp, #52\t@ 0x34
     110:\tb900      \tcbnz\tr0, 104 <a+0x4>

00000200 <b>:
     200:\tf84d ed08 \tstr.w\tlr, [sp, #-8]!
     204:\te7fe      \tb.n\t300 <c>

00000300 <c>:
     300:\tf5ad 7d00 \tsub.w\tsp, sp, #512\t@ 0x200
"""
RISCV = """
00000000 <Reset_Handler>:
   0:\t1141                \taddi\tsp,sp,-16
   2:\tff010113          \tjal\t100 <a>
   6:\t0141                \taddi\tsp,sp,16

00000100 <a>:
   100:\t7139                \taddi\tsp,sp,-64
   102:\t8082                \tret
"""
SYMBOLS = """
00000000 g     F .text\t0000000a Reset_Handler
00000100 l     F .text\t0000000a a
00000200 l     F .text\t0000000a b
00000300 g     F .text\t0000000a c
00000400 g     F .text\t0000000a hook
00000500 g     O .text\t0000000a constants
"""
HOOK = """
00000400 <hook>:
     400:\tb500      \tpush\t{r0-r7, lr}

00000500 <constants>:
     500:\tf5ad 7d00 \tsub.w\tsp, sp, #512
"""
SAVED = """
00000000 <Reset_Handler>:
   0:\tff010113          \tjal\tt0,20 <__riscv_save_4>
   4:\tff010113          \tjal\t100 <a>
   8:\t0141                \tj\t40 <__riscv_restore_4>

00000020 <__riscv_save_4>:
  20:\t7139                \tadd\tsp,sp,-64
  22:\t5301                \tli\tt1,-32
  24:\t40610133            \tsub\tsp,sp,t1
  28:\t8282                \tjr\tt0

00000100 <a>:
   100:\t1141                \taddi\tsp,sp,-16
   102:\t8082                \tret
"""


def test_frames_that_routines_of_the_compiler_take_count_for_their_callers() -> None:
    assert deepest(read_functions(SAVED)) == 64 + 16


def test_a_call_through_a_pointer_may_reach_what_no_instruction_calls() -> None:
    text = SYMBOLS + CALLS.replace("sub.w\tsp, sp, #512\t@ 0x200", "blx\tr3") + HOOK
    assert deepest(read_functions(text)) == 8 + (36 + 52 + 16) + 8 + 36
    again = text.replace("push\t{r0-r7, lr}", "bl\t100 <a>")
    with pytest.raises(NoStackBoundError, match="a calls b calls c calls hook calls a"):
        deepest(read_functions(again))


def test_the_longest_chain_of_calls_counts() -> None:
    assert deepest(read_functions(CALLS)) == 8 + (36 + 52 + 16) + 8 + 512
    assert deepest(read_functions(RISCV)) == 16 + 64


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("bl\t100 <a>", "a calls a|a calls b calls a"),
        ("blx\tr3", "calls through a pointer"),
        ("sub.w\tsp, sp, r3", "moves its stack pointer"),
        ("add\tsp, r4", "moves its stack pointer"),
        ("ldr.w\tsp, [r0]", "moves its stack pointer"),
    ],
)
def test_what_has_no_bound_is_refused(line: str, why: str) -> None:
    with pytest.raises(NoStackBoundError, match=why):
        deepest(read_functions(CALLS.replace("str.w\tlr, [sp, #-8]!", line)))


@pytest.mark.parametrize("target", ["cortex-m4", "cortex-m0plus", "cortex-m55", "riscv32"])
def test_the_image_obeys_it_and_its_stack_too(tmp_path: Path, emulator: None, quick_host: None, target: str) -> None:
    board = {"board": "mps2-an385"} if target == "cortex-m0plus" else {}
    smallest = tvm_cascade.compile(MODEL, target=target, output=tmp_path / "p", ram="9KiB", **board)
    assert smallest.stack_bytes is not None and smallest.ram_bytes is not None and smallest.elf is not None
    sections = {s.name: s for s in read_sections(smallest.folder / smallest.elf)}
    assert sections[".stack"].bytes == smallest.stack_bytes
    ram = [s for s in sections.values() if s.name in (".data", ".bss", ".stack")]
    assert max(s.address + s.bytes for s in ram) - min(s.address for s in ram) <= 9 * 1024
    done = tvm_cascade.run(smallest.folder)
    assert done.ok and done.stack_bytes is not None
    assert 0 < done.stack_bytes <= smallest.stack_bytes < done.stack_bytes + 200
    own = find_board(smallest.folder, smallest.board)
    assert (own.ram.bytes, own.stack_reserve) == (9 * 1024, smallest.stack_bytes)
    assert f"{smallest.ram_bytes + smallest.stack_bytes} in all" in smallest.to_text()


@pytest.mark.parametrize("target", ["cortex-m4", "riscv32"])
@pytest.mark.parametrize("option", ["stream_input", "hook"])
def test_networks_that_call_back_have_a_bound(
    tmp_path: Path, emulator: None, quick_host: None, target: str, option: str
) -> None:
    options: dict[str, Any] = {option: True}
    compiled = tvm_cascade.compile(MODEL, target=target, output=tmp_path / "p", ram="12KiB", **options)
    done = tvm_cascade.run(compiled.folder)
    assert done.ok and done.stack_bytes is not None and compiled.stack_bytes is not None
    assert 0 < done.stack_bytes <= compiled.stack_bytes


def test_a_cap_that_the_stack_breaks_is_planned_for_again(tmp_path: Path, emulator: None, quick_host: None) -> None:
    told: list[str] = []
    plain = tvm_cascade.compile(MODEL, target="cortex-m4", output=tmp_path / "p", ram="64KiB")
    assert plain.stack_bytes is not None and plain.ram_bytes is not None
    cap = plain.peak_bytes + 320  # for the arena that is best otherwise, and less than the stack takes
    tight = tvm_cascade.compile(MODEL, target="cortex-m4", output=tmp_path / "q", ram=cap, progress=told.append)
    assert tight.ram_bytes is not None and tight.stack_bytes is not None
    assert tight.ram_bytes + tight.stack_bytes <= cap and tight.peak_bytes < plain.peak_bytes
    assert any("planning again" in line for line in told)


def test_what_cannot_obey_is_refused_and_not_written(tmp_path: Path, emulator: None, quick_host: None) -> None:
    with pytest.raises(InfeasibleError, match=r"\d+ bytes missing") as caught:
        tvm_cascade.compile(MODEL, target="cortex-m4", output=tmp_path / "p", ram=2000)
    assert caught.value.available == 2000 and not (tmp_path / "p").exists()
    assert f"{caught.value.needed - 2000} bytes missing" in str(caught.value)
    with pytest.raises(UsageError, match="--ram caps the RAM of an image, and none is linked for host"):
        tvm_cascade.compile(MODEL, target="host", output=tmp_path / "p", ram=20000)
    for capped in (PlanRequest(ram=20000), PlanRequest(flash=20000)):
        with pytest.raises(UsageError, match="linked into no image"):
            Cascade(capped)


def test_a_plan_leaves_the_least_that_images_take() -> None:
    assert PlanRequest(ram="16KiB").within_ram().sram == 16 * 1024 - 256
    assert PlanRequest(ram="16KiB", sram=5000).within_ram().sram == 5000
    assert PlanRequest(sram=5000).within_ram(300) == PlanRequest(sram=5000)
    assert PlanRequest(ram=100).within_ram(300).sram == 0
    assert json.loads(json.dumps(tvm_cascade.plan(MODEL, ram="9KiB").to_dict()))["peak_bytes"] <= 9 * 1024 - 256
