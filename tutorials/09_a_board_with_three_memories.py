"""
A board with three memories
===========================

A little fast RAM, more RAM that is slower, and a lot that is much slower: where does a network lie?

.. code-block:: console

    $ python tutorials/09_a_board_with_three_memories.py [--out DIR]

Microcontrollers seldom have one RAM. Next to the core lie a few KiB that answer at once, behind a bus lies more, and outside
of the chip megabytes that are ten times slower. A plan for one arena uses one of the three. Here a board file names all of
them, with what an access waits; the network is planned for all of them together, compiled into one array and one linker
section a memory, and run in the emulator, which tells what was touched of each. (Why things are so: rfc 0015.)
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.errors import InfeasibleError
from tvm_cascade.testing import shapes

MODEL = Path(shapes.__file__).parent / "data" / "shapes.tflite"

parser = argparse.ArgumentParser(description="Place a network in three memories.")
parser.add_argument("--out", type=Path, default=Path("memories-out"))
out = parser.parse_known_args()[0].out.absolute()

# %%
# Say what the memories are
# -------------------------
# The file of an emulated Cortex-M7 board, with memories of our own: the fastest first. ``wait`` is the cycles that an access
# takes beside those of the core, ``line`` the bytes that it moves. The stack stays in the RAM that the memories do not take.
# Flash waits too, which copies of weights can save. Real microcontrollers have such files already: ``tvm-cascade targets`` lists
# them.
board = json.loads(load_board("mps2-an500").source)
board |= {"name": "three", "description": "An MPS2 with three memories", "clock": 200_000_000}
board["memories"] = {
    "dtcm": {"origin": "0x20000000", "bytes": 8192, "wait": 0},
    "sram": {"origin": "0x20010000", "bytes": 32768, "wait": 2},
    "psram": {"origin": "0x60000000", "bytes": 8388608, "wait": 32},
}
board["memory"]["flash"] |= {"wait": 8}
out.mkdir(parents=True, exist_ok=True)
path = out / "three.json"
path.write_text(json.dumps(board, indent=2))

# %%
# Plan
# ----
# The name of a board, or the path of its file, is a target: core, memories and clock. Every tensor, ring, accumulator and
# scratch goes where the cycles of the whole are fewest, by the bytes that the emitted kernels read and write.
three = tvm_cascade.plan(MODEL, target=str(path))
print(three.to_text())

# %%
# What is it worth? The same network all in the slow memory:
slow = tvm_cascade.plan(MODEL, target=str(path), memory="psram")
print(f"three memories  {three.cycles} cycles, {three.milliseconds} ms")
print(f"all in psram    {slow.cycles} cycles, {slow.milliseconds} ms")
assert three.cycles < slow.cycles

# %%
# What cannot fit
# ---------------
# Capacities are kept: what does not fit is refused, with the bytes that are missing. ``objective="bytes"`` plans for the fewest
# bytes in place of the fewest cycles.
try:
    tvm_cascade.plan(MODEL, target=str(path), memory=["dtcm=1KiB", "sram=2KiB"])
except InfeasibleError as error:
    print(error)

# %%
# Compile and run
# ---------------
# One array and one section a memory. ``prefetch`` also copies weights layer by layer into a double buffer, in the memory where
# they save most: a board with a DMA controller defines ``port_copy_start`` and ``port_copy_wait`` for that.
if shutil.which("arm-none-eabi-gcc") is None:
    raise SystemExit("arm-none-eabi-gcc is not installed: nothing is compiled")
made = tvm_cascade.compile(MODEL, target=str(path), prefetch="2KiB", output=out / "firmware")
print(f"without copies {three.cycles} cycles, with them {made.cycles}")
assert made.cycles <= three.cycles
for row in made.to_dict()["memories"]:
    print(f"{row['name']:<6}{row['peak_bytes']:>7} of {row['capacity_bytes']:>8} bytes at 0x{row['address']:08x}")
print((out / "firmware" / "boards" / "three" / "link.ld").read_text().split(".stack")[0][-330:].strip())
if shutil.which("qemu-system-arm") is not None:
    ran = tvm_cascade.run(out / "firmware")
    print(ran.to_text())
    touched = {row["name"]: row["high_water_bytes"] for row in ran.to_dict()["memories"]}
    assert ran.equals_host and all(touched[m["name"]] <= m["peak_bytes"] for m in made.to_dict()["memories"])

# %%
# Elsewhere
# ---------
# ``export --as zephyr`` and ``--as arduino`` place the same arrays in firmware of other build systems; the other kinds of
# packages leave each to a macro that names its section.
print(f"tvm-cascade export {out / 'firmware'} --as zephyr -o {out / 'module'}")
