"""Count instructions and code bytes of single kernels: an emulated image runs each over a whole tensor between counter reads.

Inputs are pseudo-random bytes, or floats between -4 and 4; weights are the kernels' own. A count depends on nothing
else, and is the same on every machine. Code bytes are the size of the kernel's symbol; kernels are not inlined, so each
has a symbol.
"""

from __future__ import annotations

import re
import struct
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import tvm

from tvm_cascade.boards.board import Board
from tvm_cascade.cores import Core, KernelTarget
from tvm_cascade.emit.codegen import build_object, print_c
from tvm_cascade.emit.toolchain import Program, find_tool, link, run_tool
from tvm_cascade.emit.write_image import copy_runtime
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.runs.emulator import run_without_inputs
from tvm_cascade.schedules.kernels.kernel import Param, Role
from tvm_cascade.schedules.rules.elementary import with_polynomials
from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE
from tvm_cascade.schedules.tuning.counting import Count, Counter, Task

_BATCH_KERNELS, _BATCH_BYTES = 100, 1_500_000  # per image: kernels, bytes of their constants
_TIMEOUT_S = 900
_INCLUDED = ("math.h", "stddef.h", "stdint.h", "string.h")
_HEAD = '#include "board.h"\n#include "port.h"\n\n' + "".join(f"#include <{name}>\n" for name in _INCLUDED) + "\n"


def require_counter(board: Board | None) -> Board:
    """Return the board if its emulator counts instructions; raise `UsageError` otherwise, and for the host."""
    if board is None or board.counter is None or board.qemu_machine is None:
        name = board.name if board else "the host"
        raise UsageError(f"{name} counts no instructions, so nothing can be tuned on it; choose another --board")
    return board


def counter_of(
    target: Core, board: Board, backend: str, progress: Callable[[str], None] = lambda _: None, jobs: int = 2
) -> Counter:
    """Make a function that counts instructions and code bytes for tasks on an emulated board; `backend` is `c` or
    `obj`.
    """
    require_counter(board)

    def count(tasks: Sequence[Task]) -> list[Count]:
        made: list[Count] = []
        for batch in batches(tasks):
            progress(f"counting kernels in {board.qemu_machine}: {len(made)} of {len(tasks)} done")
            with tempfile.TemporaryDirectory(prefix="tvm-cascade-count-") as folder:
                made += _count(Path(folder), batch, target, board, backend, jobs)
        return made

    return count


def batches(tasks: Sequence[Task]) -> list[list[Task]]:
    """Group tasks so that each group fits a single image, by bytes of constants and by number."""
    batches: list[list[Task]] = []
    size = _BATCH_BYTES + 1
    for task in tasks:
        own = sum(int(c.nbytes) for c in task.kernel.constants)
        if size + own > _BATCH_BYTES or len(batches[-1]) >= _BATCH_KERNELS:
            batches.append([])
            size = 0
        batches[-1].append(task)
        size += own
    return batches


def counting_image(
    folder: Path, tasks: Sequence[Task], target: Core, board: Board, backend: str, jobs: int = 2
) -> Path:
    """Build an image in `folder` with functions `run_<k>`, which make all calls of task k in turn."""
    copy_runtime(folder, target)
    blob, places = _constants(tasks)
    (folder / "blob.bin").write_bytes(blob)
    text = f'.section .rodata\n.balign 16\n.global blob\nblob:\n.incbin "{folder / "blob.bin"}"\n'
    (folder / "blob.S").write_text(text, encoding="utf-8")
    objects: tuple[str, ...] = ()
    kernels = _c_kernels(_module(tasks, target, backend)) if backend == "c" else ""
    if backend != "c":
        (folder / "kernels.o").write_bytes(build_object(_module(tasks, target, backend), target.llvm))
        objects = ("kernels.o",)
    (folder / "main.c").write_text(_main(tasks, places, kernels), encoding="utf-8")
    sources = {name: ("-w", *target.c_flags) for name in ("main.c", "startup.c", "port_semihosting.c", "blob.S")}
    built = link(Program("count", folder, target, "balanced", sources, objects, 0), board, folder / "build", jobs)
    return built.elf


def _count(folder: Path, tasks: Sequence[Task], target: Core, board: Board, backend: str, jobs: int) -> list[Count]:
    elf = counting_image(folder, tasks, target, board, backend, jobs)
    return list(map(Count, _run(elf, board, len(tasks)), _sizes(elf, target, len(tasks))))


def _constants(tasks: Sequence[Task]) -> tuple[bytes, list[list[int]]]:
    """Collect the constants of all tasks in a single blob, each aligned to 8 bytes, and return the offsets by task."""
    blob, places = bytearray(), []
    for task in tasks:
        own = []
        for array in task.kernel.constants:
            blob += b"\0" * (-len(blob) % 8)
            own.append(len(blob))
            blob += np.ascontiguousarray(array).tobytes()
        places.append(own)
    return bytes(blob), places


def _module(tasks: Sequence[Task], core: Core, backend: str) -> tvm.IRModule:
    """Return the functions of tasks, written as in firmware."""
    target = KernelTarget(core, backend)
    functions = [with_polynomials(t.kernel.func, target) for t in tasks]
    return tvm.IRModule({_name(i): f.with_attr("global_symbol", _name(i)) for i, f in enumerate(functions)})


def _name(index: int) -> str:
    return f"counted_{index}"


def _c_kernels(mod: tvm.IRModule) -> str:
    text = print_c(mod)
    return re.sub(r"^static int32_t (counted_\w+\()", r"__attribute__((noipa)) int32_t \1", text, flags=re.M)


def _main(tasks: Sequence[Task], places: Sequence[Sequence[int]], kernels: str) -> str:
    most_in = max(sum(-(-f.bytes // 16) * 16 for f in t.inputs) for t in tasks)
    most_out = max(sum(-(-b * t.calls // 16) * 16 for b in t.outputs) for t in tasks)
    scratch = max(t.kernel.scratch_bytes for t in tasks)
    lines = [
        f"static uint8_t in[{most_in}] __attribute__((aligned(16)));",
        f"static uint8_t out[{most_out}] __attribute__((aligned(16)));",
        f"static uint8_t scratch[{max(scratch, 16)}] __attribute__((aligned(16)));",
        "extern const uint8_t blob[];",
    ]
    if not kernels:
        lines += [f"int32_t {_name(i)}({_types(t)});" for i, t in enumerate(tasks)]
    for i, task in enumerate(tasks):
        lines += _runner(i, task, places[i])
    lines += [
        "static void fill_bytes(void) {",
        "  uint32_t seed = 1u;",
        "  for (uint32_t i = 0; i < sizeof in; ++i) { seed = seed * 1664525u + 1013904223u; in[i] = seed >> 24; }",
        "}",
        *_FLOATS * any(map(_reads_floats, tasks)),
        "int main(void) {",
        "  port_open(); counter_setup();",
        "  fill_bytes();",
        *(
            f"  fill_floats(); run_{i}(); fill_bytes();" if _reads_floats(t) else f"  run_{i}();"
            for i, t in enumerate(tasks)
        ),
        "  port_exit(0); return 0;",
        "}",
    ]
    return _HEAD + (C_PRELUDE if kernels else "") + kernels + "\n".join(lines) + "\n"


_FLOATS = [
    "static void fill_floats(void) {",
    "  uint32_t seed = 1u;",
    "  for (uint32_t i = 0; i < sizeof in / 4; ++i) {",
    "    seed = seed * 1664525u + 1013904223u; ((float *)(void *)in)[i] = (float)(seed >> 20) / 512.0f - 4.0f;",
    "  }",
    "}",
]


def _reads_floats(task: Task) -> bool:
    return any(p.role is Role.INPUT and p.dtype == "float32" for p in task.kernel.params)


def _types(task: Task) -> str:
    return ", ".join("void *" if p.is_pointer else "int32_t" for p in task.kernel.params)


def _runner(index: int, task: Task, places: Sequence[int]) -> list[str]:
    """Write the C function `run_<index>`: all calls to a kernel between two counter readings."""
    starts, at = [], 0
    for feed in task.inputs:
        starts.append(at)
        at += -(-feed.bytes // 16) * 16
    ends, at = [], 0
    for size in task.outputs:
        ends.append(at)
        at += -(-size * task.calls // 16) * 16

    def argument(p: Param) -> str:
        if p.role is Role.INPUT:
            return f"(void *)(in + {starts[p.index]})"
        if p.role is Role.SLOT:
            return f"slot{p.index}"
        if p.role is Role.SLOTS:
            return str(task.inputs[p.index].rows)
        if p.role is Role.CONSTANT:
            return f"(void *)(blob + {places[p.index]})"
        if p.role is Role.SCRATCH:
            return "(void *)scratch"
        if p.role is Role.OUTPUT:
            return f"(void *)(out + {ends[p.index]} + y * {task.outputs[p.index]})"
        return "y"

    slots = []
    for i, feed in enumerate(task.inputs):
        slots.append(f"    int32_t slot{i} = y * {feed.stride} - {feed.padding};")
        slots.append(f"    if (slot{i} < 0) slot{i} += {feed.rows};" if feed.padding else f"    (void)slot{i};")
    return [
        f"static __attribute__((noinline)) void run_{index}(void) {{",
        "  uint32_t read[4];",
        "  read[2] = counter_coarse(); read[0] = counter_low();",
        f"  for (int32_t y = 0; y < {task.calls}; ++y) {{",
        *slots,
        f"    {_name(index)}({', '.join(argument(p) for p in task.kernel.params)});",
        "  }",
        "  read[1] = counter_low(); read[3] = counter_coarse();",
        "  port_write(read, sizeof read);",
        "}",
    ]


def _run(elf: Path, board: Board, count: int) -> list[int]:
    status, data = run_without_inputs(elf, board, _TIMEOUT_S)
    if status != 0 or len(data) != 16 * count:
        raise ToolError(f"counting kernels on {board.name} failed after {len(data) // 16} of {count}")
    assert board.counter is not None
    counts = []
    for low, low_after, coarse, coarse_after in struct.iter_unpack("<4I", data):
        ticks = board.counter.ticks((low, low_after), (coarse, coarse_after))
        counts.append(round(ticks / board.counter.ticks_per_instruction))
    return counts


def _sizes(elf: Path, target: Core, count: int) -> list[int]:
    """Measure each kernel's code bytes."""
    tool = find_tool(f"{target.family.prefix}nm", target.family.compiler_remedy)
    listed = run_tool((tool, "-S", str(elf)))
    sizes = {m[2]: int(m[1], 16) for m in re.finditer(r"^\w+ (\w+) \w (counted_\d+)$", listed, flags=re.M)}
    return [sizes.get(_name(i), 0) for i in range(count)]
