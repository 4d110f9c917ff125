"""The C helpers of kernels: those that are called, with what they call, and nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tvm_cascade.schedules.rules.helpers import needed
from tvm_cascade.schedules.rules.intrinsics import C_PRELUDE, INTRINSICS

_POINTERS = {"copy4": 2, "copy16": 2, "ld32": 1, "ldr": 1}
COMPILERS = (
    "gcc",
    "clang",
    "arm-none-eabi-gcc -mcpu=cortex-m4 -mthumb",
    "arm-none-eabi-gcc -mcpu=cortex-m0plus -mthumb",
)


def _call(name: str) -> str:
    """A function that calls one helper."""
    head = re.search(rf"TC_INLINE (?P<type>\w+) tc_{name}\(([^)]*)\)", C_PRELUDE)
    count = head[2].count(",") + 1 if head else 3 if f"TC_ASM4(tc_{name}," in C_PRELUDE else 1
    plain = "(float)v" if head and "float" in head[2] else "v"
    values = ", ".join("p" if k < _POINTERS.get(name, 0) else plain for k in range(count))
    declared = "int32_t f(void *p, int32_t v)"
    return f"{declared};\n{declared} {{ (void)p; (void)v; return (int32_t)tc_{name}({values}); }}\n"


def test_all_of_it_is_needed_by_somebody() -> None:
    calls = "".join(_call(item.name) for item in INTRINSICS)
    assert needed(C_PRELUDE, calls) == C_PRELUDE.strip("\n") + "\n"


@pytest.mark.parametrize("compiler", COMPILERS)
def test_what_is_left_compiles_and_is_used(compiler: str, tmp_path: Path) -> None:
    if shutil.which(compiler.split()[0]) is None:
        pytest.skip(f"{compiler.split()[0]} is not installed")
    for item in INTRINSICS:
        text = needed(C_PRELUDE, _call(item.name))
        whole = f"#include <stdint.h>\n#include <string.h>\n{text}{_call(item.name)}"
        path = tmp_path / f"{item.name}.c"
        path.write_text(whole)
        flags = ("-std=c99", "-Wall", "-Wextra", "-Wconversion", "-pedantic", "-Werror", "-fsyntax-only")
        done = subprocess.run([*compiler.split(), *flags, str(path)], capture_output=True, text=True, check=False)
        assert done.returncode == 0, (item.name, done.stderr)
        names = re.findall(r"\b(?:tc|TC)_\w+", whole)
        assert len(text) < len(C_PRELUDE) / 3 and all(names.count(name) > 1 for name in names)


def test_nothing_is_left_where_nothing_is_called() -> None:
    assert "tc_" not in needed(C_PRELUDE, "int32_t x;") and "TC_" not in needed(C_PRELUDE, "int32_t x;")
    assert "#pragma" in needed(C_PRELUDE, "")
