"""A file that was compiled before with the same options is not planned again; nothing else is taken for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm

from tvm_cascade import api, compilation
from tvm_cascade.boards.board import load_board
from tvm_cascade.cache import Cache, cache_folder
from tvm_cascade.cascading import Plan
from tvm_cascade.errors import InfeasibleError, LoadError
from tvm_cascade.records import from_json, to_json
from tvm_cascade.results import CompileResult, PlanResult
from tvm_cascade.testing.tflite import ModelWriter

pytestmark = pytest.mark.usefixtures("quick_host", "arm_gcc")


def model(seed: int = 0) -> bytes:
    writer = ModelWriter()
    rng = np.random.default_rng(seed)
    x = writer.activation((1, 12, 12, 4), "int8", 0.1, 3, name="x")
    writer.convolution(writer.convolution(x, 8, 3, 1, rng), 4, 3, 2, rng)
    return writer.finish()


class Compiler:
    """Compiles a file into new folders, and says whether it was planned."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file, self.plans, self.projects = folder, folder / "m.tflite", 0, 0
        self.file.write_bytes(model())

    def __call__(self, **options: Any) -> tuple[bool, CompileResult, list[str]]:
        before, lines = self.plans, []
        self.projects += 1
        place = self.folder / str(self.projects)
        made = api.compile(self.file, **{"target": "cortex-m4", "output": place, "progress": lines.append} | options)
        return self.plans > before, made, lines


@pytest.fixture
def compile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    compiler = Compiler(tmp_path)
    plan = compilation.plan_for

    def counted(*arguments: Any) -> Any:
        compiler.plans += 1
        return plan(*arguments)

    monkeypatch.setattr(compilation, "plan_for", counted)
    return compiler


def files(project: Path) -> dict[str, bytes]:
    return {str(p.relative_to(project)): p.read_bytes() for p in sorted(project.rglob("*")) if p.is_file()}


@pytest.mark.parametrize("options", [{}, {"emit": "obj"}, {"target": "host", "hook": True}, {"stream_input": True}])
def test_again_is_the_same(options: dict[str, Any], compile: Compiler) -> None:
    """Folder, result and progress; without the cache too."""
    (planned, first, told), (planned_again, again, told_again) = compile(**options), compile(**options)
    assert planned and not planned_again and told == told_again
    assert files(first.folder) == files(again.folder)
    assert first.plan == again.plan and first.to_text(verbose=True).replace("/1", "/2") == again.to_text(verbose=True)
    one, other = first.to_dict(), again.to_dict()
    assert one.pop("seconds") != other.pop("seconds") and json.dumps(one) == json.dumps(other)
    planned, plain, told = compile(**options, cache=False)
    assert planned and told == told_again and files(plain.folder) == files(again.folder)


def test_whatever_differs_is_planned(compile: Compiler, tmp_path: Path) -> None:
    counts = tmp_path / "counts.json"
    counts.write_text('{"counts": {}}')
    variants: list[dict[str, Any]] = [
        {},
        {"target": "cortex-m7"},
        {"sram": 4096},
        {"optimise": "size"},
        {"name": "other"},
        {"hook": True},
        {"ram_weights": 100},
        {"layerwise": True},
        {"stream_input": True},
        {"database": counts},
    ]
    for options in variants:
        assert compile(**options)[0], options
    for options in variants:
        assert not compile(**options)[0], options
    counts.write_text('{"counts": {} }')
    assert compile(database=counts)[0]
    compile.file.write_bytes(model(seed=1))
    assert compile()[0] and not compile()[0]
    compile.file = compile.file.rename(tmp_path / "named.tflite")  # networks are named after their files
    assert compile()[0]


@pytest.mark.parametrize("package", ["onnx", "tflite", "flatbuffers", "scipy"])
def test_other_versions_of_what_reads_or_places_are_planned_again(
    package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`memory.milp` places small arenas with scipy, and where there is none they may be larger."""
    file = tmp_path / "m.tflite"
    file.write_bytes(b"a model")
    keys = []
    for installed in ("1.0", ""):
        monkeypatch.setattr(compilation, "package_version", lambda name, v=installed: v if name == package else "1.0")
        keys.append(compilation.key_of(file, compilation.Request(), Cache(tmp_path)))
    assert None not in keys and keys[0] != keys[1]


def test_a_named_board_whose_ram_is_a_cap_is_planned_once(compile: Compiler) -> None:
    compile()
    assert compile(board="mps2-an500")[0]
    planned, made, _ = compile(board="mps2-an500")
    assert not planned and made.board == "mps2-an500" and (made.folder / "boards" / "mps2-an500").is_dir()
    assert files(made.folder) == files(compile(board="mps2-an500", cache=False)[1].folder)


def test_what_is_not_kept(compile: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reports, whose frontier takes a search; modules; models in several files; anything that a record does not hold."""
    for _ in range(2):
        assert compile(report=tmp_path / "r.html")[0]
    request = compilation.Request()
    cache = Cache(cache_folder())
    assert compilation.key_of(compile.file, request, cache) is not None
    onnx = tmp_path / "m.onnx"
    for content, kept in ((b"weights inside", True), (b"location weights.bin", False)):
        onnx.write_bytes(content)
        assert (compilation.key_of(onnx, request, cache) is not None) is kept
    assert compilation.key_of(api.load(compile.file), request, cache) is None
    with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):  # TVM's passes make other code then
        assert compile(granularity="pixel")[0] and compile(granularity="pixel")[0]
    assert compile(granularity="pixel")[0] and not compile(granularity="pixel")[0]
    monkeypatch.setattr(compilation, "to_json", lambda kept: to_json((kept, kept)))
    assert compile(granularity="row")[0] and compile(granularity="row")[0]


def test_refusals_are_the_same(compile: Compiler, tmp_path: Path) -> None:
    board = json.loads(load_board("mps2-an386").source) | {"stack_reserve": 4096}
    board["memory"]["ram"]["bytes"] = 5000
    (tmp_path / "small.json").write_text(json.dumps(board))
    said: list[str] = []
    for cache in (True, True, False):
        with pytest.raises(InfeasibleError):
            compile(sram=16, cache=cache)
        compile(cache=cache)
        with pytest.raises(InfeasibleError) as refused:  # its plan is kept by now
            compile(board=tmp_path / "small.json", cache=cache)
        said.append(str(refused.value))
    assert said == [said[0]] * 3 and compile.plans == (1 + 1 + 1) + (1 + 1) + (
        1 + 1 + 2
    )  # of a board: under its RAM, then without
    compile.file = tmp_path / "missing.tflite"
    with pytest.raises(LoadError):
        compile()


def test_what_a_limit_ended_is_planned_again(compile: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was found in full serves every limit."""
    counted = compilation.plan_for

    def limited(*arguments: Any) -> Any:
        planned, told = counted(*arguments)
        return planned, replace(told, limited=True)

    with monkeypatch.context() as patched:
        patched.setattr(compilation, "plan_for", limited)
        assert [compile()[0], compile(time_limit=60)[0]] == [True, True]
    assert [compile()[0], compile()[0], compile(time_limit=60)[0]] == [True, False, False]


def test_records_come_back(compile: Compiler) -> None:
    _, made, _ = compile()
    told = PlanResult(**{name: getattr(made, name) for name in PlanResult.__dataclass_fields__})
    assert from_json(PlanResult, json.loads(json.dumps(to_json(told)))) == told
    for damaged in (to_json(told.plan)[:-1], [*to_json(told.plan), 0], 7):
        with pytest.raises((TypeError, ValueError)):
            from_json(Plan, damaged)
    with pytest.raises(TypeError, match="cannot be recorded"):
        to_json({1: 2})
