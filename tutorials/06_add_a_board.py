"""
Describe a board of your own
============================

A board is one JSON file: no code, no linker script. Describe one, fit a network to it, and run it there.

.. code-block:: console

    $ python tutorials/06_add_a_board.py [--out DIR]

The board is a product with a Cortex-M4 whose application keeps most of the memory: 10 KiB of RAM and 48 KiB of flash
are left for the network. QEMU knows a machine with that processor (netduinoplus2): the file says how to emulate it.
The package need not know the board, nor be changed: the file may lie anywhere.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import tvm_cascade
from tvm_cascade.boards.board import load_board
from tvm_cascade.errors import InfeasibleError, UsageError
from tvm_cascade.testing import shapes

MODEL = Path(shapes.__file__).parent / "data" / "shapes.tflite"

parser = argparse.ArgumentParser(description="Fit a network to a board that one JSON file describes.")
parser.add_argument("--out", type=Path, default=Path("board-out"))
out = parser.parse_known_args()[0].out
out.mkdir(parents=True, exist_ok=True)

# %%
# The board's file
# ----------------
# The head of ``tvm_cascade/boards/board.py`` lists all keys.
BOARD = {
    "name": "doorbell",
    "description": "Doorbell, revision C: STM32F405; what the application leaves of 1 MiB flash and 128 KiB RAM",
    "core": "cortex-m4",  # decides the compiler's options; a target of another core is refused
    "memory": {
        "flash": {"origin": "0x08000000", "bytes": 48 * 1024},
        "ram": {"origin": "0x20000000", "bytes": 10 * 1024},
    },
    "stack_reserve": 1024,  # bytes at the end of RAM that no plan may take
    # The rest is optional. Without "qemu" the board can be compiled for and flashed, but not emulated;
    # "counter" counts instructions, "uart" serves `run --port`, "flash_tool" names the board for pyocd and openocd.
    # A port is one of the known kinds (this one: {"kind": "stm32", "address": "0x40011000"}), or its registers, as here.
    # All keys: the head of tvm_cascade/boards/board.py.
    "qemu": {"machine": "netduinoplus2"},
    "uart": {
        "kind": "polled",
        "receive": {"status": "0x40011000", "mask": "0x20", "data": "0x40011004"},  # USART1: SR.RXNE, DR
        "transmit": {"status": "0x40011000", "mask": "0x80", "data": "0x40011004"},  # SR.TXE, DR
        # clock of port A and of the port; PA9 and PA10 are its pins; 115200 baud of 16 MHz; enable
        "setup": [
            ["0x40023830", "0x1"],
            ["0x40023844", "0x10"],
            ["0x40020000", "0xa8280000"],
            ["0x40020024", "0x770"],
            ["0x40011008", "0x8b"],
            ["0x4001100c", "0x200c"],
        ],
        "baud": 115200,
    },
    "flash_tool": {"pyocd": "stm32f405rg", "openocd": ["interface/stlink.cfg", "target/stm32f4x.cfg"], "stflash": True},
}

path = out / "doorbell.json"
path.write_text(json.dumps(BOARD, indent=2) + "\n", encoding="utf-8")

# %%
# ``load_board`` checks it: unknown and missing keys, memories that overlap, an unknown core.
board = load_board(str(path))
print(f"{board.name}: {board.core}, {board.ram.bytes} bytes of RAM, {board.flash.bytes} bytes of flash")
wrong = out / "wrong.json"
wrong.write_text(json.dumps(BOARD | {"memory": BOARD["memory"] | {"ram": {"origin": "0x08000000", "bytes": 8192}}}))
try:
    load_board(wrong)
except UsageError as error:
    print(error)
wrong.unlink()

# %%
# What follows needs the cross compiler.
if shutil.which("arm-none-eabi-gcc") is None:
    print("arm-none-eabi-gcc is not installed: `tvm-cascade doctor` says how to get it")
    raise SystemExit

# %%
# Layer by layer
# --------------
# The plain network does not fit, and nothing is written.
try:
    tvm_cascade.compile(MODEL, target="cortex-m4", board=str(path), output=out / "plain", layerwise=True)
except InfeasibleError as error:
    print(error)
assert not (out / "plain").exists()

# %%
# Cascaded
# --------
# The cascade fits. The linker script in ``boards/doorbell`` has its regions and stack reserve from the file.
made = tvm_cascade.compile(MODEL, target="cortex-m4", board=str(path), output=out / "firmware")
print(made.to_text())
assert made.ram_bytes is not None and made.ram_bytes + board.stack_reserve <= board.ram.bytes
print((out / "firmware" / "boards" / "doorbell" / "link.ld").read_text().split("SECTIONS")[0].rstrip())

# %%
# Run it
# ------
# It computes what the host computes. The folder keeps the board's file: no need to name it again.
if shutil.which("qemu-system-arm") is not None:
    ran = tvm_cascade.run(out / "firmware")
    print(ran.to_text())
    assert ran.equals_host and ran.arena_high_water_bytes <= made.plan.peak

# %%
# The same folder on another board: ``--board`` takes names and files alike. On the real one: flash, then run over its
# serial port; ``--image application`` flashes ``main.c`` as you have written it.
print(f"tvm-cascade run {out / 'firmware'} --board mps2-an386")
print(f"tvm-cascade flash {out / 'firmware'}")
print(f"tvm-cascade run {out / 'firmware'} --port /dev/ttyACM0")
