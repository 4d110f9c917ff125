"""
Put compiled networks into firmware of your own
===============================================

Your main, your memory, your watchdog, your build.

.. code-block:: console

    $ python tutorials/08_embed_a_network.py [--out DIR]

A folder that ``compile`` writes is a whole project, but of a network you need three files: its header, its code and its
weights. Here a product takes two networks, ``camera`` and ``scanner`` (the same shapes network, compiled in two ways, so that
both must say the same), and calls them from its own C. Which memory they compute in is said when that is compiled: an
array of the network's, in a section of your choice; memory of yours, by pointer; one arena for both. All of it is built
with gcc for this machine, and for an emulated Cortex-M4 where the tools are installed. (``tvm-cascade bundle`` writes such an
image of several networks as a project, ``export`` a package for another build system; why things are so: rfc 0007.)
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import tvm_cascade
from tvm_cascade.testing import shapes

MODEL = Path(shapes.__file__).parent / "data" / "shapes.tflite"
NETWORKS = ("camera", "scanner")
FLAGS = ("-std=c11", "-O1", "-Wall", "-Wextra", "-Wconversion", "-Werror")

parser = argparse.ArgumentParser(description="Call compiled networks from firmware of your own.")
parser.add_argument("--out", type=Path, default=Path("embed-out"))
out = parser.parse_known_args()[0].out.absolute()
if shutil.which("gcc") is None:
    print("gcc is not installed: this tutorial compiles C")
    raise SystemExit
board = all(shutil.which(f"arm-none-eabi-{tool}") for tool in ("gcc", "nm"))

# %%
# The product
# -----------
# Its C calls the networks by the functions of their headers. What those functions are called begins with the network's name.
APPLICATION = r"""/* The product. What begins with camera_ and scanner_ is in the headers of the networks; read them. */
#include "camera.h"
#include "scanner.h"
#include "picture.h" /* static const int8_t picture[64 * 64], and what the answers are called */

#include <string.h>

#ifdef ON_BOARD
#include "port.h" /* of a project folder: prints through the emulator */
static void say(const char *text) { port_print(text); }
#else
#include <stdio.h>
static void say(const char *text) { (void)fputs(text, stdout); }
#endif

#define LARGER(a, b) ((a) > (b) ? (a) : (b))
#define MEMORY LARGER(CAMERA_ARENA_SIZE, SCANNER_ARENA_SIZE)
#if defined(TVM_CASCADE_SHARED_ARENA) /* one array for all networks, and the mark that one of them runs */
_Alignas(LARGER(CAMERA_ARENA_ALIGN, SCANNER_ARENA_ALIGN)) uint8_t tvm_cascade_arena[MEMORY];
volatile uint8_t tvm_cascade_arena_busy;
#elif defined(TVM_CASCADE_ARENA_POINTER) /* memory that the product has anyway, say a frame buffer */
static _Alignas(LARGER(CAMERA_ARENA_ALIGN, SCANNER_ARENA_ALIGN)) uint8_t frame_buffer[MEMORY];
#endif

enum { TOO_LATE = 1 }; /* answers of ours are positive, errors of the networks negative */

struct watch {
    int32_t fed;   /* how often the watchdog was */
    int32_t limit; /* steps until we lose patience; 0: never */
};

/* Between any two steps of the network (a row of one operator): CAMERA_STEPS times a run. */
static int32_t between_steps(void *context, int32_t done)
{
    struct watch *watch = context;
    ++watch->fed; /* here a product writes to its watchdog, or yields to its scheduler */
    if (done % (CAMERA_STEPS / 8) == 0) {
        say("#");
    }
    return watch->limit != 0 && done >= watch->limit ? TOO_LATE : 0;
}

/* The scanner never holds the picture: it asks for one row after the other, and may keep it no longer than it must. */
static int32_t read_row(void *context, int32_t row, int8_t *to)
{
    memcpy(to, (const int8_t *)context + row * 64, 64);
    return 0;
}

#ifdef TVM_CASCADE_SHARED_ARENA
/* A mistake: another network, in the same arena, before the first has ended. */
static int32_t impatient(void *context, int32_t done)
{
    struct scanner_inputs in;
    if (done == 1) {
        *(int32_t *)context = scanner_map_inputs(&in);
    }
    return 0;
}
#endif

static void report(const char *what, int32_t status, const int8_t *scores)
{
    int32_t best = 0;
    say(what);
    if (status != 0) {
        say(status == TOO_LATE ? ": cancelled\n" : status == CAMERA_BUSY ? ": refused, busy\n" : ": refused\n");
        return;
    }
    for (int32_t k = 1; k < CAMERA_SCORES_SIZE; ++k) {
        best = scores[k] > scores[best] ? k : best;
    }
    say(": ");
    say(names[best]);
    say("\n");
}

static int32_t look(struct watch *watch, int8_t *scores)
{
    struct camera_inputs in;
    struct camera_outputs out;
    (void)camera_map_outputs(&out);
    int32_t status = camera_map_inputs(&in);
    if (status != CAMERA_OK) {
        return status;
    }
    in.image = picture; /* of yours, copied; or write to where in.image points: then nothing is */
    in.hook = between_steps;
    in.hook_context = watch;
    status = camera_run(&in, &out);
    if (status == CAMERA_OK) {
        memcpy(scores, out.scores, CAMERA_SCORES_SIZE); /* out.scores lies in the arena: gone with the next run */
    }
    return status;
}

static int32_t scan(int8_t *scores)
{
    struct scanner_inputs in;
    struct scanner_outputs out;
    (void)scanner_map_inputs(&in);
    in.image = read_row;
    in.image_context = (void *)(uintptr_t)picture;
    out.scores = scores;
    return scanner_run(&in, &out);
}

int main(void)
{
    int8_t seen[CAMERA_SCORES_SIZE] = {0};
    int8_t scanned[SCANNER_SCORES_SIZE] = {0};
    struct watch watch = {0, 0};
    int32_t status;
#if defined(TVM_CASCADE_ARENA_POINTER) && !defined(TVM_CASCADE_SHARED_ARENA)
    report("camera without memory", look(&watch, seen), seen);
    if (camera_set_arena(frame_buffer, sizeof frame_buffer) != CAMERA_OK ||
        scanner_set_arena(frame_buffer, sizeof frame_buffer) != SCANNER_OK) { /* NULL, too small, or not aligned */
        return 1;
    }
#endif
    status = look(&watch, seen);
    report(" camera", status, seen);
    if (status != CAMERA_OK || watch.fed != CAMERA_STEPS) {
        return 1;
    }
    watch.limit = CAMERA_STEPS / 2;
    report(" camera", look(&watch, seen), seen); /* and the next run is as good as the first */
    status = scan(scanned);
    report("scanner", status, scanned);
#ifdef TVM_CASCADE_SHARED_ARENA
    struct camera_inputs in;
    struct camera_outputs out;
    int32_t answer = 0;
    (void)camera_map_outputs(&out);
    (void)camera_map_inputs(&in);
    in.image = picture;
    in.hook = impatient;
    in.hook_context = &answer;
    status |= camera_run(&in, &out);
    report("scanner inside of camera", answer, scanned);
    status |= answer == SCANNER_BUSY ? 0 : 1;
#endif
    return status != 0 || memcmp(seen, scanned, sizeof seen) != 0;
}
"""

# %%
# Two networks
# ------------
# ``hook`` lets the product in between steps; the scanner asks for its picture row by row, and keeps up to 2 KiB of the weights
# that are read most in RAM. ``emit="c"`` gives C for any compiler, kernels included.
target = "cortex-m4" if board else "host"
common: dict[str, Any] = {"target": target, "emit": "c", "granularity": "row"}
made = [
    tvm_cascade.compile(MODEL, output=out / "camera", name="camera", hook=True, **common),
    tvm_cascade.compile(MODEL, output=out / "scanner", name="scanner", stream_input=True, ram_weights=2048, **common),
]
for name, one in zip(NETWORKS, made, strict=True):
    print(f"{name}: arena {one.plan.peak} bytes, weights in RAM {one.ram_weight_bytes} bytes")

# %%
# Into the product's folder go three files of each, and a picture to look at.
product = out / "product"
product.mkdir(exist_ok=True)
sources = ["application.c"]
for name in NETWORKS:
    for file in (f"{name}.h", f"{name}.c", f"{name}_weights.c"):
        shutil.copyfile(out / name / file, product / file)
    sources += [f"{name}.c", f"{name}_weights.c"]
image = np.clip(np.round(shapes.dataset(2, seed=99)[0][1] * 255) - 128, -128, 127).astype(np.int8)
(product / "picture.h").write_text(
    f"static const int8_t picture[{image.size}] = {{{', '.join(map(str, image.ravel()))}}};\n"
    f"static const char *const names[] = {{{', '.join(json.dumps(name) for name in shapes.CLASSES)}}};\n"
)
(product / "application.c").write_text(APPLICATION)


def call(command: list[str], folder: Path, show: bool = True) -> str:
    if show:
        print("$ " + " ".join(command).replace('="', "='\"").replace('" ', "\"' "))
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode != 0:
        raise SystemExit(f"{command[0]} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout + done.stderr


def memory_report(image: str, folder: Path, nm: str) -> None:
    """RAM of the networks in a linked image, from its symbols."""
    print("RAM of the networks, bytes:")
    for line in sorted(call([nm, "-S", image], folder, show=False).splitlines()):
        fields = line.split()
        named = fields[-1].startswith((*NETWORKS, "tvm_cascade", "frame_buffer"))
        if len(fields) == 4 and fields[2] in "bBdD" and named:
            print(f"  {int(fields[1], 16):6d}  {fields[3]}")


# %%
# Three places for the arena
# --------------------------
# The same files, three times: where the arena lies is a matter of definitions that all of them are compiled with.
places = {
    "an array of each network's, in sections of our choice": [
        '-DCAMERA_ARENA_SECTION=".bss.fast"',
        '-DSCANNER_WEIGHTS_SECTION=".bss.fast"',
    ],
    "memory of the product's, by pointer": ["-DTVM_CASCADE_ARENA_POINTER"],
    "one arena for both": ["-DTVM_CASCADE_SHARED_ARENA"],
}
for title, defines in places.items():
    print(f"\n{title}")
    call(["gcc", *FLAGS, "-fno-strict-aliasing", *defines, *sources, "-lm", "-o", "product"], product)
    print(call(["./product"], product, show=False), end="")
    memory_report("product", product, "nm")
print(f"\nan arena of their own would take {sum(one.plan.peak for one in made)} bytes together")

# %%
# On a Cortex-M4
# --------------
# Start-up code and linker script are yours in a product; here those of ``camera`` serve. Where a section goes is for the linker
# script to say: ``.bss.fast`` is put first.
if not board or shutil.which("qemu-system-arm") is None:
    print("arm-none-eabi-gcc or qemu-system-arm is missing: `tvm-cascade doctor` says how to get them")
    raise SystemExit

# What start-up code calls when main has returned is the product's; here it ends the emulator.
START = '#include "port.h"\nint product(void);\nint main(void)\n{\n    port_exit(product());\n    return 0;\n}\n'
for file in ("startup.c", "port.h", "port_semihosting.c"):
    shutil.copyfile(out / "camera" / file, product / file)
script = (out / "camera" / "boards" / "mps2-an386" / "link.ld").read_text()
(product / "link.ld").write_text(script.replace("*(.bss .bss.*", "*(.bss.fast) *(.bss .bss.*"))
(product / "start.c").write_text(START)
core = ["-mcpu=cortex-m4", "-mthumb", "-ffunction-sections", "-fdata-sections", "-fno-strict-aliasing"]
defines = [
    "-DTVM_CASCADE_SHARED_ARENA",
    '-DSCANNER_WEIGHTS_SECTION=".bss.fast"',
    "-DON_BOARD",
    "-DTVM_CASCADE_EMULATOR",
]
for source in [*sources, "start.c", "startup.c", "port_semihosting.c"]:
    main_is = ["-Dmain=product"] if source == "application.c" else []
    call(["arm-none-eabi-gcc", *FLAGS, *core, *defines, *main_is, "-c", source], product, show=False)
objects = sorted(path.name for path in product.glob("*.o"))
link = ["-nostartfiles", "--specs=nano.specs", "-Wl,--gc-sections", "-Tlink.ld"]
call(["arm-none-eabi-gcc", *core[:2], *link, *objects, "-o", "product.elf"], product)

# %%
# And run it, in the emulator.
machine = ["-M", "mps2-an386", "-display", "none", "-semihosting-config", "enable=on,target=native"]
print(call(["qemu-system-arm", *machine, "-kernel", "product.elf"], product), end="")
memory_report("product.elf", product, "arm-none-eabi-nm")
print(call(["arm-none-eabi-size", "product.elf"], product), end="")
