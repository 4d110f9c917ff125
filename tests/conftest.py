"""Fixtures of the whole suite."""

from __future__ import annotations

import difflib
import gc
import hashlib
import os
import re
import shutil
import sys
import typing
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tvm_cascade.cache import Cache

GOLDEN = Path(__file__).parent / "golden"
LONGEST = (  # files of a minute and more on a busy machine: first, so that no process waits for the last of them at the end
    "tutorials/test_tutorials.py", "schedules/test_estimates.py", "runtime/test_farm.py", "micro/test_code_size.py",
    "schedules/test_coded_weights.py", "passes/test_time_promise.py", "micro/test_flash_cap.py", "report/test_screen.py",
    "benchmarks/test_gpu_pack.py", "micro/test_weights_file.py", "passes/test_place_network.py",
    "schedules/test_merge_kernels.py", "schedules/test_dense_sum.py", "frontend/test_kernel_layout.py",
    "passes/test_schedule_stages.py", "micro/test_machines.py", "cli/test_cli.py", "cli/test_schema.py",
    "schedules/test_stage_tuning.py", "micro/test_total_ram.py", "passes/test_one_column.py",
    "validation/test_run_by_layer.py", "runtime/test_optimize_costs.py", "passes/test_super_resolution.py",
    "conformance/test_conformance.py", "micro/test_compilation_cache.py",
)  # fmt: skip
UNOPTIMISED = r"\22opt-level\22:0"  # in the target that an LLVM text names
LOWERED = ("C", "C driver", "host", "object")  # what the cache keeps of kernels, under the kernels themselves

gc.set_threshold(500_000, 20, 100)  # as the command line has it: next to nothing of what tests make is a cycle


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    gc.collect()
    gc.freeze()  # modules and items live as long as the process: no search for cycles walks through them
    place = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: place.get(item.path, len(LONGEST)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write the golden texts of tests/golden instead of comparing"
    )


@pytest.fixture(scope="session")
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """`golden(name, text)`: `text` equals the file `name` below tests/golden, or with --update-golden becomes it."""
    update = request.config.getoption("--update-golden")

    def check(name: str, text: str) -> None:
        path = GOLDEN / name
        if update:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8", newline="")
            return
        remedy = "where the new text is right, pytest --update-golden writes it; then read the diff"
        if not path.is_file():
            pytest.fail(f"tests/golden/{name} is missing: {remedy}", pytrace=False)
        expected = path.read_bytes().decode()
        if text != expected:
            lines = difflib.unified_diff(
                expected.splitlines(), text.splitlines(), f"tests/golden/{name}", "now", lineterm="", n=1
            )
            changed = "\n".join(list(lines)[:60]) or "only line endings differ"
            pytest.fail(f"tests/golden/{name} differs: {remedy}\n{changed}", pytrace=False)

    return check


@pytest.fixture(scope="session")
def test_data() -> Path:
    """Folder with `models/` and `cases/` (public files that are not part of the project); tests that need it skip without."""
    folder = os.environ.get("TVM_CASCADE_TEST_DATA")
    if not folder or not Path(folder).is_dir():
        pytest.skip("TVM_CASCADE_TEST_DATA names no folder with public models")
    return Path(folder)


@pytest.fixture(scope="session")
def models(test_data: Path) -> Path:
    return test_data / "models"


@pytest.fixture(scope="session")
def emulator() -> None:
    """Skip where the Arm cross compiler or QEMU is missing (`make test` installs both on Debian)."""
    for tool in ("arm-none-eabi-gcc", "qemu-system-arm"):
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


@pytest.fixture(scope="session", autouse=True)
def _cache_of_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What fixtures of several tests compile is kept in a folder of this run, which its processes share, not in the user's."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"
    folder.mkdir(exist_ok=True)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TVM_CASCADE_CACHE_DIR", str(folder))
        yield folder


@pytest.fixture(autouse=True)
def _cache_of_test(
    _cache_of_run: Path, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> Iterator[None]:
    """Every test begins with an empty cache, which no other process uses."""
    own = hashlib.sha256(request.node.nodeid.encode()).hexdigest()
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TVM_CASCADE_CACHE_DIR", str(tmp_path_factory.getbasetemp() / "caches" / own))
        yield


@pytest.fixture(autouse=True)
def kernels_are_lowered_once(_cache_of_run: Path) -> Iterator[None]:
    """Kernels that a test lowers are taken from the cache of the run where an earlier one lowered the same.

    Plans are not: every test plans what it compiles. Files about the lowering itself have a fixture of this name that does
    nothing.
    """
    module = sys.modules.get("tvm_cascade.cache")
    if module is None:  # none of the files of this run compiles anything
        yield
        return
    value, run = module.Cache.value, module.Cache(_cache_of_run)

    def shared(
        cache: Cache, kind: str, inputs: Callable[[], Sequence[str | bytes]], make: Callable[[], bytes]
    ) -> bytes:
        if cache.folder is None or cache.folder == run.folder or kind not in LOWERED:
            return value(cache, kind, inputs, make)
        given = inputs()
        return value(cache, kind, lambda: given, lambda: value(run, kind, lambda: given, make))

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(module.Cache, "value", shared)
        yield


@lru_cache(maxsize=1)
def _built_once(assembly: Any) -> Callable[..., Any]:
    """`assembly._built` that builds once for all functions of a structure, of whatever test."""
    from tvm_cascade.passes.relax_functions import ByStructure

    build, known = assembly._built.__wrapped__, ByStructure[dict[Any, Any]]()

    def built(func: Any, form: type, access: Any, name: str) -> Any:
        made = known.get(func, dict)
        if (form, access, name) not in made:
            made[form, access, name] = build(func, form, access, name)
        return made[form, access, name]

    return lru_cache(maxsize=512)(built)  # as in the product: structures are compared once for a function


@pytest.fixture(autouse=True)
def kernels_are_built_once() -> Iterator[None]:
    """A generic kernel is taken from an earlier test that built the same: of functions of one structure, for one access.

    Files about the kernels themselves have a fixture of this name that does nothing.
    """
    assembly = sys.modules.get("tvm_cascade.schedules.kernels.assembly")
    if assembly is None:  # none of the files of this run plans or compiles anything
        yield
        return
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(assembly, "_built", _built_once(assembly))
        yield


@pytest.fixture(autouse=True)
def quick_programs_are_linked() -> Iterator[None]:
    """Programs for this machine that were built without optimisation are linked: LLVM's JIT would optimise them.

    Files about what users run have a fixture of this name that does nothing.
    """
    host = sys.modules.get("tvm_cascade.emit.host")
    if host is None:
        yield
        return
    from tvm_cascade.testing.quick_build import linked

    read = host.read_llvm

    def read_quickly(text: str) -> Any:
        return linked(read(text)) if UNOPTIMISED in text else read(text)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host, "read_llvm", read_quickly)
        yield


@pytest.fixture(scope="session", autouse=True)
def _sources_are_compiled_once(_cache_of_run: Path) -> Iterator[None]:
    """A C file is compiled once for a core: start-up code and drivers are the same in hundreds of images.

    The object is kept under the compiler, its options, and the contents of the file and of all headers that it can see.
    """
    toolchain = sys.modules.get("tvm_cascade.emit.toolchain")
    if toolchain is None:  # none of the files of this run compiles anything
        yield
        return
    run, kept = toolchain.run_tool, toolchain.Cache(_cache_of_run)

    def run_once(command: Sequence[str]) -> str:
        if "-c" not in command:
            return run(command)
        source, made = (Path(command[list(command).index(option) + 1]) for option in ("-c", "-o"))
        folders = [Path(word[2:]) for word in command if word.startswith("-I")]
        rule = Path(f"{made}.d")  # the headers, where they are asked for
        options = [word for word in command if not word.startswith("-I") and word not in map(str, (source, made, rule))]
        headers = [header for folder in folders for header in sorted(folder.glob("*.h"))]
        parts = [repr((options, len(folders))), source.name, source.read_bytes()]
        parts += [part for header in headers for part in (header.name, header.read_bytes())]

        # the rule names headers by their paths, which are others in the next folder; the longest first: boards are in projects
        places = [(re.sub(r"([ #])", r"\\\1", str(f)).replace("$", "$$"), f"\0{k}\0") for k, f in enumerate(folders)]
        places.sort(key=lambda place: -len(place[0]))

        def compiled() -> bytes:
            run(command)
            listed = rule.read_text() if rule.exists() else ""
            for folder, place in places:
                listed = listed.replace(folder, place)
            return f"{len(listed.encode())} ".encode() + listed.encode() + made.read_bytes()

        length, _, rest = kept.value("object of a test", lambda: parts, compiled).partition(b" ")
        made.write_bytes(rest[int(length) :])
        if "-MD" in options:
            listed = rest[: int(length)].decode()
            for folder, place in places:
                listed = listed.replace(place, folder)
            rule.write_text(listed)
        return ""

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(toolchain, "run_tool", run_once)
        yield


@pytest.fixture(scope="session", autouse=True)
def _types_of_torch_are_read_once() -> Iterator[None]:
    """To read a `.pt2` file, torch looks up the types of a class's fields anew for every object of it: half of the time."""
    if "torch" not in sys.modules:  # none of the files of this run asks for it
        yield
        return
    from torch._export.serde import serialize

    hints: dict[type, dict[str, Any]] = {}

    class Typing:
        @staticmethod
        def get_type_hints(cls: type, **names: Any) -> dict[str, Any]:
            if cls not in hints:
                hints[cls] = typing.get_type_hints(cls, **names)
            return hints[cls]

        def __getattr__(self, name: str) -> Any:
            return getattr(typing, name)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(serialize, "typing", Typing())
        yield


@pytest.fixture(scope="module")
def quick_host() -> Iterator[None]:
    """Host programs of projects are built without optimisation: for files that are about other code than theirs."""
    from tvm_cascade.emit import host
    from tvm_cascade.testing.quick_build import quick_build

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(host, "optimised", quick_build)
        yield


@pytest.fixture(scope="module")
def quick_stages() -> Iterator[None]:
    """Staged programs for this machine's processor are built without optimisation: for files that compare what they compute."""
    import tvm

    from tvm_cascade.runtime import execute
    from tvm_cascade.testing.quick_build import with_linked_kernels

    target, build = execute.host_target, tvm.compile

    def unoptimised() -> Any:
        return tvm.target.Target({"kind": "llvm", "mcpu": str(target().attrs["mcpu"]), "opt-level": 0})

    def compiled(mod: Any, target: Any = None, *arguments: Any, **named: Any) -> Any:
        made = build(mod, target, *arguments, **named)
        quick = "relax_pipeline" in named and getattr(target, "attrs", {}).get("opt-level") == 0
        return with_linked_kernels(made) if quick else made

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(execute, "host_target", unoptimised)
        patched.setattr(tvm, "compile", compiled)
        yield


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name parameters that are functions by their name: an address would differ between the processes of one run."""
    return getattr(val, "__name__", None) if callable(val) else None


def _is_missing(report: pytest.TestReport | pytest.CollectReport) -> bool:
    """Whether a skip is for something that continuous integration installs; torch has a run of its own (`make test-torch`)."""
    if not (os.environ.get("TVM_CASCADE_STRICT") and report.skipped):
        return False
    why = str(report.longrepr)
    return "not installed" in why or ("could not import" in why and "could not import 'torch" not in why)


def _fail_what_is_missing() -> Iterator[None]:
    """With TVM_CASCADE_STRICT (continuous integration) what is missing is a failure, never a skip."""
    outcome = yield
    report = outcome.get_result()
    if _is_missing(report):
        report.outcome = "failed"


pytest_runtest_makereport = pytest.hookimpl(hookwrapper=True)(_fail_what_is_missing)
pytest_make_collect_report = pytest_runtest_makereport  # for whole files that ask for a package when they are read
