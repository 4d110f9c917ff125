"""Instructions by operator: an image of a hooked project whose hook reads the counter after every step of the plan.

What the hook itself takes between two readings is left out; the rest of its call is the same for every step, and
`by_operator` spreads it so that the parts sum up to the count of the image without hooks.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

from tvm_cascade.boards.board import Board
from tvm_cascade.cascading.plan import Plan
from tvm_cascade.emit.image import read_image
from tvm_cascade.emit.toolchain import Program, link
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runs.emulator import run_without_inputs

_TIMEOUT_S = 600
_MAIN = r"""
#include "@name@.h"
#include "board.h"
#include "port.h"

static uint32_t ticks[@steps@ + 1];
static uint32_t last;

static int32_t step(void *context, int32_t done)
{
    const uint32_t now = counter_low();
    (void)context;
    ticks[done - 1] = now - last;
    last = counter_low();
    return 0;
}

int main(void)
{
    struct @name@_inputs inputs;
    struct @name@_outputs outputs;
    uint32_t seed = 1u;

    port_open();
    counter_setup();
    for (uint32_t i = 0; i < @NAME@_ARENA_SIZE; ++i) {
        seed = seed * 1664525u + 1013904223u;
        @name@_arena[i] = (uint8_t)(seed >> 24);
    }
    @name@_map_inputs(&inputs);
    @name@_map_outputs(&outputs);
    inputs.hook = step;
    last = counter_low();
    if (@name@_run(&inputs, &outputs) != 0) {
        port_exit(1);
    }
    port_write(ticks, @steps@ * sizeof ticks[0]);
    port_exit(0);
    return 0;
}
"""


def steps_of(plan: Plan) -> list[int]:
    """The operator of every step, in the order in which the driver makes them; -1 - t is the source of input t."""
    return [actor for s in plan.segments for _ in range(max(1, len(s.stripes))) for actor in s.trace]


def profile(folder: Path, plan: Plan, board: Board) -> list[int]:
    """Instructions of every step of `plan`, of which `folder` holds the project, compiled with hooks.

    Raises `UsageError` for boards that count nothing or wrap too early, `ToolError` if the image fails.
    """
    counter, image = board.counter, read_image(folder)
    if counter is None or board.qemu_machine is None or counter.low.bits != 32 or counter.low.down:
        raise UsageError(f"{board.name} has no counter of 32 bits to read between steps")
    steps = steps_of(plan)
    text = _MAIN.replace("@name@", image.name).replace("@NAME@", image.name.upper())
    (folder / "profile.c").write_text(text.replace("@steps@", str(len(steps))), encoding="utf-8")
    sources = {source: n.c_flags for n in image.networks for source in n.sources}
    sources |= {name: ("-w",) for name in ("profile.c", "startup.c", "port_semihosting.c")}
    objects = image.networks[0].objects
    program = Program("profile", folder, image.target, image.optimise, sources, objects, plan.peak)
    built = link(program, board, folder / "build" / "profile")
    status, data = run_without_inputs(built.elf, board, _TIMEOUT_S)
    if status != 0 or len(data) != 4 * len(steps):
        raise ToolError(f"profiling {image.name} on {board.name} failed: status {status}")
    return [round(t / counter.ticks_per_instruction) for (t,) in struct.iter_unpack("<I", data)]


def by_operator(plan: Plan, ticks: Sequence[int], total: int) -> list[int]:
    """Instructions of every operator: the sum of its steps, less its share of the cost of the hooks.

    `total` is the count of the image without hooks; what `ticks` sum up to beyond it is spread over all steps.
    """
    steps = steps_of(plan)
    excess = (sum(ticks) - total) / max(1, len(steps))
    sums = [0.0] * len(plan.graph.ops)
    for actor, each in zip(steps, ticks, strict=True):
        if actor >= 0:
            sums[actor] += each - excess
    return [round(s) for s in sums]
