"""Emitted texts, letter by letter: a change of what users get is seen in review as a diff of this folder.

After a change that is meant, `pytest tests/golden --update-golden` writes the new texts. They end in .txt so that no
tool takes them for sources.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tvm.ir import IRModule

import tvm_cascade
from tvm_cascade.cores import get_core
from tvm_cascade.testing.builder import Net

HERE = Path(__file__).parent
Golden = Callable[[str, str], None]

# folder: what is compiled, and the files of the project that are golden
PROJECTS = {
    "cortex_m4": (
        {"target": "cortex-m4", "emit": "c"},
        ("network.c", "network.h", "network_weights.c", "main.c", "boards/mps2-an386/link.ld", "boards/mps2-an386/board.h"),
    ),
    "streamed": (
        {"target": "cortex-m4", "emit": "c", "stream_input": True, "hook": True, "ram_weights": 64},
        ("network.h", "main.c", "network_weights.c"),
    ),
    "riscv32": (
        {"target": "riscv32", "emit": "c"},
        ("network.h", "CMakeLists.txt", "toolchain.cmake", "boards/riscv32-virt/link.ld", "boards/riscv32-virt/board.h"),
    ),
    "host": ({"target": "host"}, ("network.c", "network.h", "CMakeLists.txt")),
}  # fmt: skip


def network() -> IRModule:
    """An int8 network with an operator of each common kind: strided, depthwise and 1x1 convolution, sum, mean, dense."""
    net = Net("int8", seed=1)
    x = net.input((1, 12, 12, 3), "image")
    y = net.depthwise(net.conv(x, 4, kernel=3, stride=2, activation="relu"), kernel=3, activation="relu")
    y = net.add(net.conv(y, 4, kernel=1), y)
    return net.finish(net.dense(net.flatten(net.global_pool(y)), 3))


def golden_name(folder: str, name: str) -> str:
    return f"{folder}/{Path(name).name}.txt"


@pytest.mark.parametrize("folder", PROJECTS)
def test_project(folder: str, golden: Golden, tmp_path: Path) -> None:
    options, names = PROJECTS[folder]
    family = get_core(str(options["target"])).family
    if options["target"] != "host" and shutil.which(family.gcc) is None:
        pytest.skip(f"{family.gcc} is not installed")
    tvm_cascade.compile(network(), output=tmp_path / "p", **options)
    for name in names:
        golden(golden_name(folder, name), (tmp_path / "p" / name).read_bytes().decode())


def test_plan(golden: Golden) -> None:
    golden("plan.txt", tvm_cascade.plan(network()).to_text(details=True) + "\n")
    golden(
        "plan_capped.txt",
        tvm_cascade.plan(network(), sram=300, stream_input=True, max_macs=1.5).to_text(details=True) + "\n",
    )


def test_every_golden_text_belongs_to_a_test() -> None:
    texts = {str(p.relative_to(HERE)) for p in HERE.rglob("*") if p.is_file() and p.suffix not in (".py", ".pyc")}
    elsewhere = ("primitives/", "schemas/")  # tests/schedules/test_primitives.py, tests/core/test_schema.py
    texts = {t for t in texts if not t.startswith(elsewhere)}
    compared = {golden_name(folder, name) for folder, (_, names) in PROJECTS.items() for name in names}
    assert texts == compared | {"plan.txt", "plan_capped.txt"}
