"""Compiling again takes what was compiled from the cache: the same bytes, nothing lowered; and never a wrong one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tvm.ir import IRModule

from tvm_cascade import api
from tvm_cascade.cache import Cache
from tvm_cascade.emit import codegen, host, toolchain
from tvm_cascade.emit.object_cache import CachedObject
from tvm_cascade.errors import ToolError

SOURCES = 5  # C files of an image: network, weights, main.c, startup.c, port
NETWORK = """
from tvm_cascade import api
from tvm_cascade.testing.builder import Net

def network():
    net = Net("int8", seed=3)
    x = net.conv(net.input((1, 12, 12, 4)), 8, 3)
    for _ in range(3):
        x = net.conv(net.conv(x, 8, 3), 8, 1)
    return net.finish(x)
"""


@pytest.fixture(autouse=True)
def kernels_are_lowered_once() -> None:
    """They are not here: what is lowered is counted."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache folder that `compile` uses; nothing is there yet."""
    monkeypatch.setenv("TVM_CASCADE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often what the cache saves was done."""
    found: Counter[str] = Counter()

    def count(module: ModuleType, name: str) -> None:
        function = getattr(module, name)

        def call(*arguments: Any) -> Any:
            linked = name == "run_tool" and "-c" not in arguments[0]
            found["linked" if linked else name] += 1
            return function(*arguments)

        monkeypatch.setattr(module, name, call)

    count(codegen, "lower_for")
    count(host, "optimised")
    count(toolchain, "run_tool")
    return found


def network() -> IRModule:
    names: dict[str, Any] = {}
    exec(NETWORK, names)
    return names["network"]()


def files(project: Path) -> dict[str, bytes]:
    return {str(p.relative_to(project)): p.read_bytes() for p in sorted(project.rglob("*")) if p.is_file()}


# the driver and three kernels, or two and the helper of one; LLVM compiles kernels together
LOWERED = {("cortex-m4", "c"): 4, ("cortex-m4", "obj"): 2, ("host", "c"): 4}


@pytest.mark.parametrize(("target", "emit"), LOWERED)
def test_compiling_again_lowers_nothing(
    target: str, emit: str, tmp_path: Path, folder: Path, work: Counter[str], arm_gcc: None
) -> None:
    mod = network()

    def compile(project: str, **options: Any) -> dict[str, bytes]:
        work.clear()
        api.compile(mod, target=target, emit=emit, output=tmp_path / project, **options)
        return files(tmp_path / project)

    plain = compile("plain", cache=False)
    assert not folder.exists()
    image = {} if target == "host" else {"run_tool": SOURCES, "linked": 1}
    cold = {"lower_for": LOWERED[target, emit], "optimised": 1, **image}
    assert work == cold
    assert compile("cold") == plain and work == cold
    assert compile("warm") == plain and work == ({"linked": 1} if image else {})


def test_networks_share_kernels(tmp_path: Path, folder: Path, work: Counter[str], arm_gcc: None) -> None:
    """With another name it has another driver and another header; with other options, its C is compiled again."""
    api.compile(network(), target="cortex-m4", output=tmp_path / "one")
    work.clear()
    api.compile(network(), target="cortex-m4", name="other", output=tmp_path / "two")
    assert work == {"lower_for": 1, "run_tool": SOURCES, "linked": 1}
    work.clear()
    api.compile(network(), target="cortex-m4", optimise="speed", output=tmp_path / "three")
    assert work == {"run_tool": SOURCES, "linked": 1}


@pytest.mark.parametrize("content", [b"", b"no value of ours", None])
def test_damaged_files_are_replaced(
    content: bytes | None, tmp_path: Path, folder: Path, work: Counter[str], arm_gcc: None
) -> None:
    """Cut off, foreign, or (None) each in the place of another."""
    api.compile(network(), target="cortex-m4", output=tmp_path / "cold")
    done, kept = Counter(work), files(folder)
    names = list(kept)
    for name, other in zip(names, names[1:] + names[:1], strict=True):
        (folder / name).write_bytes(kept[other] if content is None else content)
    work.clear()
    api.compile(network(), target="cortex-m4", output=tmp_path / "again")
    assert work == done and files(tmp_path / "again") == files(tmp_path / "cold")
    assert files(folder) == kept


def test_a_folder_that_cannot_be_written(
    tmp_path: Path, work: Counter[str], monkeypatch: pytest.MonkeyPatch, arm_gcc: None
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TVM_CASCADE_CACHE_DIR", str(tmp_path / "file"))
    for project in ("one", "two"):
        api.compile(network(), target="cortex-m4", output=tmp_path / project)
    assert files(tmp_path / "one") == files(tmp_path / "two") and work["run_tool"] == 2 * SOURCES


def test_two_processes_compile_at_once(tmp_path: Path, folder: Path, arm_gcc: None) -> None:
    end = 'import sys\napi.compile(network(), target="cortex-m4", output=sys.argv[1])'
    script = f"{NETWORK}{end}"
    running = [subprocess.Popen([sys.executable, "-c", script, tmp_path / name]) for name in ("one", "two")]
    assert [process.wait() for process in running] == [0, 0]
    api.compile(network(), target="cortex-m4", output=tmp_path / "alone", cache=False)
    assert files(tmp_path / "one") == files(tmp_path / "two") == files(tmp_path / "alone")
    assert not [name for name in files(folder) if Path(name).name.startswith(".")]


def test_an_object_follows_all_that_it_is_made_of(tmp_path: Path, arm_gcc: None) -> None:
    """The source, its project's headers, the compiler's own headers, and options; folders may be others."""
    own, foreign, compiler = tmp_path / "own", tmp_path / "a # foreign $ folder", shutil.which("arm-none-eabi-gcc")
    assert compiler is not None
    for header, value in ((own / "own.h", 1), (foreign / "foreign.h", 2)):
        header.parent.mkdir()
        header.write_text(f"#define {header.stem} {value}\n")
    (own / "a.c").write_text(
        '#include <stdint.h>\n#include "own.h"\n#include <foreign.h>\nint32_t a = own + foreign;\n'
    )
    made, options = tmp_path / "a.o", ("-mcpu=cortex-m4", f"-I{foreign}")

    def restored(*more: str, folder: Path = own) -> bool:
        """Whether the object is there; if not, it is compiled and kept."""
        made.unlink(missing_ok=True)
        entry = CachedObject(Cache(tmp_path / "cache"), compiler, (*options, *more), folder / "a.c", (folder,))
        if entry.restore(made):
            assert made.stat().st_size > 0
            return True
        command = (compiler, *options, *more, f"-I{folder}", *entry.list_headers(made))
        toolchain.run_tool((*command, "-c", str(folder / "a.c"), "-o", str(made)))
        entry.keep(made)
        return False

    assert [restored(), restored()] == [False, True]
    assert restored("-Os") is False and restored() is True
    for edited in (own / "a.c", own / "own.h", foreign / "foreign.h"):
        edited.write_text(edited.read_text() + "/* changed */\n")
        assert [restored(), restored()] == [False, True], edited
    shutil.copytree(own, tmp_path / "moved")
    assert restored(folder=tmp_path / "moved") is True
    (foreign / "foreign.h").unlink()
    with pytest.raises(ToolError, match=r"foreign\.h"):
        restored()
