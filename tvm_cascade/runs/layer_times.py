"""Times of single layers in a compiled project: its driver's kernel calls, each between two readings of a clock.

The project's own C is built once more, in a folder of its own, with a reading before and behind every kernel call.
`metadata.json` has the operator of each call. A reading costs a few instructions, which an empty interval measures and
which are taken off. The driver's own work, such as step counters, belongs to no layer.
"""

from __future__ import annotations

import json
import re
import shutil
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from tvm_cascade.boards.board import Board
from tvm_cascade.emit.board_files import find_board
from tvm_cascade.emit.image import Image, read_metadata
from tvm_cascade.emit.network import Network
from tvm_cascade.emit.toolchain import Program, find_tool, link, run_tool
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.publish import whole_file
from tvm_cascade.runs.emulator import run_without_inputs

_LIMIT_S = 600.0
_RUNS = 10  # on this machine, of which each layer's median counts
_FLAGS = ("-O2", "-std=gnu99", "-fno-strict-aliasing", "-DNDEBUG")
_HEADER = "void layers_begin(void);\nvoid layers_end(unsigned call);\n"
_FILL = "    for (uint32_t i = 0; i < {bytes}u; ++i) ((uint8_t *)(uintptr_t)inputs.{name})[i] = input{k}[i];\n"
_RUN = """
static int run(void)
{{
    struct {name}_inputs inputs;
    struct {name}_outputs outputs;
    (void){name}_map_inputs(&inputs);
    (void){name}_map_outputs(&outputs);
{fill}    return (int){name}_run(&inputs, &outputs);
}}
"""
_HOST = """
#include <stdio.h>
#include <time.h>
static uint64_t taken[{calls} + 1];
static struct timespec begin;
void layers_begin(void) {{ clock_gettime(CLOCK_MONOTONIC, &begin); }}
void layers_end(unsigned call)
{{
    struct timespec end;
    clock_gettime(CLOCK_MONOTONIC, &end);
    taken[call] += (uint64_t)((end.tv_sec - begin.tv_sec) * 1000000000LL + (end.tv_nsec - begin.tv_nsec));
}}
int main(void)
{{
    for (int n = 0; n < {runs} + 1; ++n) {{
        for (unsigned k = 0; k <= {calls}; ++k) taken[k] = 0;
        if (run() != 0) return 3;
        for (unsigned k = 0; n > 0 && k < {calls}; ++k) printf("%llu ", (unsigned long long)taken[k]);
    }}
    return 0;
}}
"""
_BOARD = """
#include "board.h"
#include "port.h"
static uint32_t taken[{calls} + 1][2]; /* ticks, readings */
static uint32_t begin;
void layers_begin(void) {{ begin = counter_low(); }}
void layers_end(unsigned call)
{{
    const uint32_t end = counter_low();
    taken[call][0] += {ticks};
    ++taken[call][1];
}}
int main(void)
{{
    port_open();
    counter_setup();
    for (int k = 0; k < 64; ++k) {{
        layers_begin();
        layers_end({calls});
    }}
    const int status = run();
    port_write(taken, sizeof taken);
    port_exit(status);
    return status;
}}
"""


@dataclass(frozen=True, slots=True)
class LayerTime:
    """Time of a single layer in a single inference."""

    name: str
    kind: str
    value: float  # milliseconds, or instructions
    share: float  # of all layers together


def time_layers(image: Image, feed: Mapping[str, np.ndarray], board: Board | None) -> tuple[LayerTime, ...]:
    """Return the time of every layer, in execution order: milliseconds here without `board`, else its instructions.

    Raises `UsageError` for a bundle, streamed inputs, weights outside the image, and edited C.
    """
    if image.several:
        raise UsageError("--by-layer is for one network: benchmark each project of the bundle")
    (network,) = image.networks
    stored = network.interface.weights
    if any(spec.streamed for spec in network.inputs) or (stored is not None and stored.storage in ("file", "stream")):
        raise UsageError("--by-layer is for whole inputs and for weights in the image")
    record = read_metadata(image.folder)
    calls = [int(operator) for operator in record.get("calls", ())]
    if not calls:
        raise UsageError(f"{image.folder} is from an older version: compile it again")
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-") as place:
        folder = Path(place) / "project"
        shutil.copytree(image.folder, folder, ignore=shutil.ignore_patterns("build", "host"))
        source = folder / f"{network.name}.c"
        source.write_text(_instrumented(source.read_text(encoding="utf-8"), network.name, len(calls)), encoding="utf-8")
        (folder / "layers.h").write_text(_HEADER, encoding="utf-8")
        texts = [_data(network, feed), _RUN.format(name=network.name, fill=_fill(network))]
        taken = (
            _on_host(folder, network, texts, len(calls))
            if board is None
            else _on_board(folder, image, network, texts, len(calls), board)
        )
    by_operator: dict[int, float] = {}
    for operator, value in zip(calls, taken, strict=True):
        by_operator[operator] = by_operator.get(operator, 0.0) + value
    rows, whole = record["operators"], sum(by_operator.values()) or 1.0
    return tuple(
        LayerTime(str(rows[k]["name"]), str(rows[k]["kind"]), value, value / whole)
        for k, value in sorted(by_operator.items())
    )


def _instrumented(text: str, name: str, calls: int) -> str:
    """Put readings around the driver's kernel calls. Raises `UsageError` unless there are as many as `calls`."""
    kernels = set(re.findall(r"^(?:static )?int32_t (\w+)\(.*\);$", text, flags=re.M)) - {f"{name}_invoke"}
    head = text.find(f"static int32_t {name}_invoke(", text.find(f"static int32_t {name}_invoke(") + 1)
    end = text.find("\n}\n", head)
    number = 0

    def wrapped(line: str) -> str:
        nonlocal number
        call = re.match(r"( +)(\w+)\(.*\);$", line)
        if call is None or call[2] not in kernels:
            return line
        number += 1
        return f"{call[1]}layers_begin(); {line.strip()} layers_end({number - 1});"

    body = "\n".join(map(wrapped, text[head:end].split("\n"))) if head >= 0 else ""
    if number != calls:
        raise UsageError(f"{name}.c was edited since it was compiled: compile it again")
    return f'#include "layers.h"\n{text[:head]}{body}{text[end:]}'


def _data(network: Network, feed: Mapping[str, np.ndarray]) -> str:
    """Write the inputs as C arrays."""
    lines = [f'#include <stdint.h>\n#include "{network.name}.h"\n#include "layers.h"\n']
    for k, spec in enumerate(network.inputs):
        data = np.ascontiguousarray(feed[spec.name]).tobytes()
        lines.append(f"static const uint8_t input{k}[] = {{{','.join(map(str, data))}}};\n")
    return "".join(lines)


def _fill(network: Network) -> str:
    return "".join(_FILL.format(bytes=s.bytes, name=s.c_name, k=k) for k, s in enumerate(network.inputs))


def _on_host(folder: Path, network: Network, texts: Sequence[str], calls: int) -> list[float]:
    """Build and run the program here; return each call's median milliseconds."""
    gcc = find_tool("gcc", "apt-get install gcc")
    main, program = folder / "layers_main.c", folder / "layers"
    main.write_text("".join([*texts, _HOST.format(calls=calls, runs=_RUNS)]), encoding="utf-8")
    parts = [str(folder / name) for name in (*network.sources, *network.objects)]
    run_tool((gcc, *_FLAGS, *network.c_flags, f"-I{folder}", str(main), *parts, "-lm", "-o", str(program)))
    done = subprocess.run([str(program)], capture_output=True, timeout=_LIMIT_S, check=False)
    if done.returncode != 0:
        raise ToolError(f"{network.name} ended with status {done.returncode} while its layers were timed")
    values = np.array(done.stdout.split(), float).reshape(_RUNS, calls)
    return [float(value) / 1e6 for value in np.median(values, axis=0)]


def _on_board(
    folder: Path, image: Image, network: Network, texts: Sequence[str], calls: int, board: Board
) -> list[float]:
    """Link the program for `board` and run its emulator; return each call's instructions."""
    counter = board.counter
    if counter is None:
        raise UsageError(f"board {board.name} counts no instructions: choose another --board")
    mask = (1 << counter.low.bits) - 1
    ticks = f"(({'begin - end' if counter.low.down else 'end - begin'}) & {mask:#x}u)"
    text = "".join([*texts, _BOARD.format(calls=calls, ticks=ticks)])
    (folder / "layers_main.c").write_text(text, encoding="utf-8")
    sources = dict.fromkeys(network.sources, tuple(network.c_flags))
    sources |= dict.fromkeys(("layers_main.c", "startup.c", "port_semihosting.c"), ("-w",))
    program = Program(
        "layers", folder, image.target, image.optimise, sources, network.objects, image.arena_bytes, image.memory_names
    )
    built = link(program, find_board(folder, board.name), folder / "build")
    status, data = run_without_inputs(built.elf, board, _LIMIT_S)
    if status != 0 or len(data) != 8 * (calls + 1):
        raise ToolError(f"{network.name} ended with status {status} on {board.name} while its layers were counted")
    rows = list(struct.iter_unpack("<2I", data))
    empty = rows[-1][0] / max(rows[-1][1], 1)
    return [max(0.0, (taken - empty * readings) / counter.ticks_per_instruction) for taken, readings in rows[:-1]]


def layer_lines(
    layers: Sequence[LayerTime], unit: str, before: Mapping[str, float] = MappingProxyType({})
) -> list[str]:
    """Format the layers as a table, in execution order, with the ratio to the value in `before`, by name."""
    from tvm_cascade.messages import short_name

    names = [short_name(layer.name) for layer in layers]
    wide, kinds = max(map(len, names), default=0), max((len(layer.kind) for layer in layers), default=0)
    shown = [f"{layer.value:.0f}" if unit == "instructions" else f"{layer.value:.4f}" for layer in layers]
    ratios = [layer.value / before[layer.name] if before.get(layer.name) else None for layer in layers]
    marks = [("" if ratio is None else f"{ratio:6.3f} times  ") if before else "" for ratio in ratios]
    return [
        f"{value:>12} {unit}  {100 * layer.share:5.1f} %  {mark}{layer.kind:<{kinds}}  {name:<{wide}}".rstrip()
        for value, layer, name, mark in zip(shown, layers, names, marks, strict=True)
    ]


def write_trace(layers: Sequence[LayerTime], unit: str, path: Path) -> None:
    """Write the layers as events of Chrome's trace viewer (chrome://tracing, Perfetto), one after another.

    A microsecond of the trace is one, or a thousand instructions.
    """
    events, at = [], 0.0
    for layer in layers:
        long = layer.value * 1e3 if unit == "ms" else layer.value / 1e3
        own = {"name": layer.name, "cat": layer.kind, "ph": "X", "ts": at, "dur": long, "pid": 1, "tid": 1}
        events.append(own | {"args": {unit: layer.value, "share": layer.share}})
        at += long
    with whole_file(path) as partial:
        partial.write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}, indent=1), encoding="utf-8")
