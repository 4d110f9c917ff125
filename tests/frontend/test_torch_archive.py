"""Archives of torch.export are read without executing anything of them."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest

from tvm_cascade.errors import LoadError
from tvm_cascade.frontend import load

pytestmark = pytest.mark.torch


class _Harmful:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def _members(folder: Path) -> dict[str, bytes]:
    """The members of an archive of one product and a sum."""
    torch = pytest.importorskip("torch")
    torch.export.save(torch.export.export(torch.nn.Linear(3, 2).eval(), (torch.zeros(1, 3),)), folder / "net.pt2")
    with zipfile.ZipFile(folder / "net.pt2") as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def _changed(folder: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(folder / "net.pt2", "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return folder / "net.pt2"


def _refused(folder: Path, members: dict[str, bytes], message: str) -> None:
    with pytest.raises(LoadError, match=message):
        load(_changed(folder, members))
    assert not (folder / "harm").exists()


def test_pickles_of_samples_are_not_read(tmp_path: Path) -> None:
    members = _members(tmp_path)
    members["net/data/sample_inputs/model.pt"] = pickle.dumps(_Harmful(tmp_path / "harm"))
    load(_changed(tmp_path, members))
    assert not (tmp_path / "harm").exists()


def test_pickled_weights_are_tensors_alone(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    members = _members(tmp_path)
    torch.save({"weight": _Harmful(tmp_path / "harm")}, tmp_path / "weights")
    members["net/data/weights/model.pt"] = (tmp_path / "weights").read_bytes()
    _refused(tmp_path, members, "weights that are pickled objects, not tensors alone")
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


@pytest.mark.parametrize(
    "name", ["data/constants/opaque_obj_0", "data/constants/custom_obj_0", "data/aotinductor/model/m.so"]
)
def test_objects_and_compiled_code_are_refused_by_name(tmp_path: Path, name: str) -> None:
    members = _members(tmp_path)
    members[f"net/{name}"] = pickle.dumps(_Harmful(tmp_path / "harm"))
    _refused(tmp_path, members, f"holds net/{name}")


@pytest.mark.parametrize(
    "target", ["torch.os.mkdir", "_operator.methodcaller", "torch.ops.aten.from_file.default", "#x:y"]
)
def test_operators_that_programs_do_not_consist_of(tmp_path: Path, target: str) -> None:
    members = _members(tmp_path)
    program = json.loads(members["net/models/model.json"])
    program["graph_module"]["graph"]["nodes"][0]["target"] = target
    members["net/models/model.json"] = json.dumps(program).encode()
    _refused(tmp_path, members, f"operator {target} is none of those")


def test_sizes_and_names_that_are_code(tmp_path: Path) -> None:
    members, code = _members(tmp_path), f"__import__('os').mkdir({str(tmp_path / 'harm')!r})"
    for change in (
        lambda graph: graph["tensor_values"]["input"]["sizes"].__setitem__(
            0, {"as_expr": {"expr_str": code, "hint": {"as_int": 1}}}
        ),
        lambda graph: graph["inputs"].__setitem__(0, {"as_tensor": {"name": f"x={code}"}}),
    ):
        program = json.loads(members["net/models/model.json"])
        change(program["graph_module"]["graph"])
        _refused(
            tmp_path, {**members, "net/models/model.json": json.dumps(program).encode()}, "is no (expression|name)"
        )


def test_guards_of_a_program_are_not_executed(tmp_path: Path) -> None:
    from tvm_cascade.checking.sensitivity import read_program

    members = _members(tmp_path)
    program = json.loads(members["net/models/model.json"])
    program["guards_code"] = [f"__import__('os').mkdir({str(tmp_path / 'harm')!r})"]
    members["net/models/model.json"] = json.dumps(program).encode()
    read_program(_changed(tmp_path, members)).module()
    assert not (tmp_path / "harm").exists()
