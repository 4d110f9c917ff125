"""Other people's code, timed by our model of the cores and by its authors on boards: MLPerf Tiny v1.0, OctoML's submission.

python benchmarks/mlperf_tiny.py --results tiny_results_v1.0 --cmsis CMSIS_5

Both are clones: of mlcommons/tiny_results_v1.0, and of ARM-software/CMSIS_5 at commit 51263182 (August 2022), when it
held CMSIS-NN as microTVM called it then.

The submission holds the C that microTVM generated for four networks, as kernels of its own and as calls of CMSIS-NN, and how
many inferences a second boards made of them. Each is compiled as it was there (GCC, -O2), run in QEMU and timed block by
block; `cycles_table.py` tells what is kept in results/cycles_mlperf.json.
"""

from __future__ import annotations

import argparse
import json
import re
import struct
import tempfile
from dataclasses import dataclass
from pathlib import Path

from block_profile import profiled
from cycles import RESULTS, Timed, symbols

from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.board_files import board_header, linker_script
from tvm_cascade.emit.toolchain import run_tool
from tvm_cascade.emit.write_image import copy_runtime

NETWORKS = ("ad", "ic", "kws", "vww")
_CODE, _RESULTS = "closed/OctoML/code", "closed/OctoML/results"
_FLAGS = ("-O2", "-w", "-ffunction-sections", "-fdata-sections")
_MAIN = """
#include "port.h"
#include <stdint.h>
#include <stddef.h>
#include "tvmgen_default.h"

static uint8_t in[65536] __attribute__((aligned(16))), out[65536] __attribute__((aligned(16)));
static uint8_t space[1 << 20] __attribute__((aligned(16)));
static size_t used, sizes[64];
static int depth;

void *TVMBackendAllocWorkspace(int type, int device, uint64_t bytes, int code, int bits)
{
    void *found = space + used;
    (void)type, (void)device, (void)code, (void)bits;
    sizes[depth++] = used;
    used += ((size_t)bytes + 15u) & ~(size_t)15u;
    return used <= sizeof space ? found : NULL;
}

int TVMBackendFreeWorkspace(int type, int device, void *from)
{
    (void)type, (void)device, (void)from;
    used = sizes[--depth];
    return 0;
}

void TVMAPISetLastError(const char *text) { (void)text; }

__attribute__((noinline)) int measured(void)
{
    struct tvmgen_default_inputs inputs = {in};
    struct tvmgen_default_outputs outputs = {out};
    return tvmgen_default_run(&inputs, &outputs);
}

__attribute__((noinline)) void done(int status) { port_exit(status); }

int main(void)
{
    uint32_t seed = 1u;
    for (size_t k = 0; k < sizeof in; ++k) {
        seed = seed * 1664525u + 1013904223u;
        in[k] = (uint8_t)(seed >> 24);
    }
    port_open();
    done(measured());
    return 0;
}
"""


@dataclass(frozen=True)
class System:
    """A board of the submission, and what stands for it here."""

    name: str  # of the folders of results
    core: str
    clock: int  # Hz, by the submission
    board: str  # emulated


@dataclass(frozen=True)
class Row:
    """A network on a board: millions of cycles."""

    code: str
    network: str
    system: System
    predicted: float
    published: float

    @property
    def error(self) -> float:
        return self.predicted / self.published - 1


L4R5 = System("NUCLEO_L4R5ZI", "cortex-m4", 120_000_000, "mps2-an386")
NRF5340 = System("NRF5340-DK", "cortex-m33", 128_000_000, "mps2-an505")
SYSTEMS = (("microtvm_native", L4R5), ("microtvm_cmsis_nn", L4R5), ("microtvm_cmsis_nn", NRF5340))


def published(results: Path, code: str, system: System, network: str) -> float:
    """Millions of cycles of an inference: the clock by the median of the inferences a second that were measured."""
    log = (results / _RESULTS / code / system.name / network / "performance" / "results.txt").read_text(
        encoding="utf-8"
    )
    rates = [float(x) for x in re.findall(r"Throughput\s*:\s*([\d.]+) inf", log)]
    return system.clock / sorted(rates)[len(rates) // 2] / 1e6


def predicted(results: Path, code: str, system: System, network: str, cmsis: Path) -> float:
    """Millions of cycles of an inference by the blocks that ran."""
    where = results / _CODE / code / system.name.replace("-", "") / network
    if system.name == L4R5.name:
        where = results / _CODE / code / system.name / network
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-mlperf-") as name:
        folder = Path(name)
        elf = built(folder, where, system, cmsis)
        (folder / "inputs.bin").write_bytes(struct.pack("<I", 0))
        listed = symbols(elf)
        start, end = listed["measured"][0], listed["done"][0]
        profile = profiled(elf, load_board(system.board), [start, end], folder)[start]
        return Timed(elf, system.core, list(profile.ran)).work(profile)[1] / 1e6


def built(folder: Path, where: Path, system: System, cmsis: Path) -> Path:
    """The linked image of a network's generated code."""
    core, board = get_core(system.core), load_board(system.board)
    copy_runtime(folder, core)
    (folder / "link.ld").write_text(linker_script(board), encoding="utf-8")
    (folder / "board.h").write_text(board_header(board), encoding="utf-8")
    (folder / "main.c").write_text(_MAIN, encoding="utf-8")
    sources = [folder / n for n in ("main.c", "startup.c", "port_semihosting.c")]
    sources += sorted((where / "model/codegen/host/src").glob("*.c"))
    includes = [
        folder,
        where / "include",
        where / "model/codegen/host/include",
        where / "crt_config",
        where / "crt/include",
    ]
    sources += sorted((cmsis / "CMSIS/NN/Source").rglob("*.c"))  # microTVM's own kernels take some of its functions too
    includes += [cmsis / "CMSIS/Core/Include", cmsis / "CMSIS/NN/Include"]
    elf = folder / "m.elf"
    command = [core.family.gcc, *core.gcc_flags, *_FLAGS, *(f"-I{path}" for path in includes), *map(str, sources)]
    command += [*core.family.link_flags, f"-T{folder / 'link.ld'}", "-lm", "-o", str(elf)]
    run_tool(command)
    return elf


def rows(results: Path, cmsis: Path) -> list[Row]:
    """All pairs of a network and a board whose code is there."""
    found = []
    for code, system in SYSTEMS:
        for network in NETWORKS:
            own = predicted(results, code, system, network, cmsis)
            found.append(Row(code, network, system, own, published(results, code, system, network)))
            print(found[-1], f"{found[-1].error:+.1%}", flush=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="Code of MLPerf Tiny, timed by our model and on boards.")
    parser.add_argument("--results", type=Path, required=True)
    parser.add_argument("--cmsis", type=Path, required=True)
    options = parser.parse_args()
    found = [
        {
            "code": row.code,
            "network": row.network,
            "board": row.system.name,
            "core": row.system.core,
            "predicted": round(row.predicted, 6),
            "published": round(row.published, 6),
        }
        for row in rows(options.results, options.cmsis)
    ]
    (RESULTS / "cycles_mlperf.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
