"""A network of CMSIS-NN's paper on a Cortex-M7, timed by our model of the core: the same kernels that were measured on a board.

python benchmarks/cmsis_cifar10.py --cmsis CMSIS_5

CMSIS_5 is a clone of ARM-software/CMSIS_5 at commit 0a0cc2aba (22 January 2018): its kernels are those of Lai, Suda and
Chandra, "CMSIS-NN: Efficient Neural Network Kernels for Arm Cortex-M CPUs" (arXiv:1801.06601, 19 January 2018), whose Table 1
has the milliseconds of every layer of a CIFAR-10 network on a NUCLEO-F746ZG at 216 MHz. Weights and images are random: no
kernel's time depends on them, but for the clamps of rectifiers. Compiled by GCC -O2, run in QEMU and timed block by block
as `cycles.py` does. Writes results/cycles_cmsis.json; `cycles_table.py` tells it.
"""

from __future__ import annotations

import argparse
import json
import struct
import tempfile
from pathlib import Path

from block_profile import profiled
from cycles import RESULTS, Timed, symbols

from tvm_cascade.boards.board import load_board
from tvm_cascade.cores import get_core
from tvm_cascade.emit.board_files import board_header, linker_script
from tvm_cascade.emit.toolchain import run_tool
from tvm_cascade.emit.write_image import copy_runtime

CORE, BOARD, CLOCK = "cortex-m7", "mps2-an500", 216_000_000
LAYERS = {  # milliseconds of Table 1; convolutions with the ReLU behind them
    "conv1": 31.4,
    "pool1": 1.6,
    "conv2": 42.8,
    "pool2": 0.4,
    "conv3": 22.6,
    "pool3": 0.3,
    "ip1": 0.1,
}
TOTAL = 99.1
_NEEDED = (
    "ConvolutionFunctions/arm_convolve_HWC_q7_RGB.c",
    "ConvolutionFunctions/arm_convolve_HWC_q7_fast.c",
    "ConvolutionFunctions/arm_nn_mat_mult_kernel_q7_q15.c",
    "ConvolutionFunctions/arm_nn_mat_mult_kernel_q7_q15_reordered.c",
    "NNSupportFunctions/arm_q7_to_q15_no_shift.c",
    "NNSupportFunctions/arm_q7_to_q15_reordered_no_shift.c",
    "ActivationFunctions/arm_relu_q7.c",
    "PoolingFunctions/arm_pool_q7_HWC.c",
    "FullyConnectedFunctions/arm_fully_connected_q7_opt.c",
)
_FLAGS = ("-O2", "-w", "-ffunction-sections", "-fdata-sections", "-DARM_MATH_CM7", "-D__FPU_PRESENT=1")
_MAIN = """
#include "port.h"
#include "arm_math.h"
#include "arm_nnfunctions.h"

static q7_t w1[5 * 5 * 3 * 32], w2[5 * 5 * 32 * 32], w3[5 * 5 * 32 * 64], w4[4 * 4 * 64 * 10], bias[64];
static q7_t image[32 * 32 * 3], a[32 * 32 * 32], b[16 * 16 * 32], col[2 * 5 * 5 * 32 * 2], out[10];

#define LAYER(name) __attribute__((noinline)) void name(void)
LAYER(conv1) { arm_convolve_HWC_q7_RGB(image, 32, 3, w1, 32, 5, 2, 1, bias, 0, 9, a, 32, (q15_t *)col, 0);
               arm_relu_q7(a, 32 * 32 * 32); }
LAYER(pool1) { arm_maxpool_q7_HWC(a, 32, 32, 3, 0, 2, 16, 0, b); }
LAYER(conv2) { arm_convolve_HWC_q7_fast(b, 16, 32, w2, 32, 5, 2, 1, bias, 0, 9, a, 16, (q15_t *)col, 0);
               arm_relu_q7(a, 16 * 16 * 32); }
LAYER(pool2) { arm_maxpool_q7_HWC(a, 16, 32, 3, 0, 2, 8, 0, b); }
LAYER(conv3) { arm_convolve_HWC_q7_fast(b, 8, 32, w3, 64, 5, 2, 1, bias, 0, 9, a, 8, (q15_t *)col, 0);
               arm_relu_q7(a, 8 * 8 * 64); }
LAYER(pool3) { arm_maxpool_q7_HWC(a, 8, 64, 3, 0, 2, 4, 0, b); }
LAYER(ip1) { arm_fully_connected_q7_opt(b, w4, 4 * 4 * 64, 10, 0, 9, bias, out, (q15_t *)col); }
__attribute__((noinline)) void done(int status) { port_exit(status); }

static uint32_t seed = 1u;
static void fill(q7_t *to, uint32_t bytes)
{
    while (bytes--) {
        seed = seed * 1664525u + 1013904223u;
        *to++ = (q7_t)(seed >> 24);
    }
}

int main(void)
{
    port_open();
    fill(w1, sizeof w1), fill(w2, sizeof w2), fill(w3, sizeof w3), fill(w4, sizeof w4), fill(image, sizeof image);
    conv1(), pool1(), conv2(), pool2(), conv3(), pool3(), ip1();
    done(out[0] == 127 && out[1] == 126);
    return 0;
}
"""


def built(folder: Path, cmsis: Path) -> Path:
    """The linked image."""
    core, board = get_core(CORE), load_board(BOARD)
    copy_runtime(folder, core)
    (folder / "link.ld").write_text(linker_script(board), encoding="utf-8")
    (folder / "board.h").write_text(board_header(board), encoding="utf-8")
    (folder / "main.c").write_text(_MAIN, encoding="utf-8")
    sources = [folder / n for n in ("main.c", "startup.c", "port_semihosting.c")]
    sources += [cmsis / "CMSIS/NN/Source" / name for name in _NEEDED]
    includes = [folder, *(cmsis / "CMSIS" / part / "Include" for part in ("NN", "DSP", "Core"))]
    elf = folder / "m.elf"
    command = [core.family.gcc, *core.gcc_flags, *_FLAGS, *(f"-I{path}" for path in includes), *map(str, sources)]
    run_tool([*command, *core.family.link_flags, f"-T{folder / 'link.ld'}", "-lm", "-o", str(elf)])
    return elf


def predicted(cmsis: Path) -> dict[str, float]:
    """Millions of cycles of every layer."""
    with tempfile.TemporaryDirectory(prefix="tvm-cascade-cmsis-") as name:
        folder = Path(name)
        elf = built(folder, cmsis)
        (folder / "inputs.bin").write_bytes(struct.pack("<I", 0))
        listed = symbols(elf)
        marks = {layer: listed[layer][0] for layer in (*LAYERS, "done")}
        profiles = profiled(elf, load_board(BOARD), list(marks.values()), folder)
        ran = dict.fromkeys(block for layer in LAYERS for block in profiles[marks[layer]].ran)
        timed = Timed(elf, CORE, list(ran))
        return {layer: timed.work(profiles[marks[layer]])[1] / 1e6 for layer in LAYERS}


def main() -> None:
    parser = argparse.ArgumentParser(description="The CIFAR-10 network of CMSIS-NN's paper, timed by our model.")
    parser.add_argument("--cmsis", type=Path, required=True)
    found = predicted(parser.parse_args().cmsis)
    rows = [
        {"layer": layer, "predicted": round(found[layer], 6), "published": round(ms * CLOCK / 1e9, 6)}
        for layer, ms in LAYERS.items()
    ]
    rows.append(
        {"layer": "all", "predicted": round(sum(found.values()), 6), "published": round(TOTAL * CLOCK / 1e9, 6)}
    )
    for row in rows:
        print(row, f"{row['predicted'] / row['published'] - 1:+.1%}")
    (RESULTS / "cycles_cmsis.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
