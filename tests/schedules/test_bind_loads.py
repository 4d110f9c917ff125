"""Memory written between two equal expressions: the C back end would take the second for the first."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import numpy as np
import pytest
import tvm
from tvm import tirx
from tvm.ir import PointerType, PrimType

from tvm_cascade.emit import codegen
from tvm_cascade.schedules.rules.emit import Builder
from tvm_cascade.schedules.tir import i32


def kernel() -> tvm.IRModule:
    """x[0] = max(x[0], 5); out = reads of x[0] on either side of further stores, under conditions too."""
    k = Builder()
    x, out = (tirx.Var(v, PointerType(PrimType("int32"))) for v in ("x", "out"))
    xs, o = k.view(x, "int32", "xs"), k.view(out, "int32", "o")
    first = xs[i32(0)]
    k.store(xs, 0, tirx.max(first, i32(5)))
    k.store(o, 0, tirx.max(first, i32(3)))  # 5
    k.store(xs, 0, tirx.min(tirx.max(first, i32(3)), i32(4)))  # 4
    k.store(o, 1, tirx.min(tirx.max(first, i32(3)), i32(9)))  # 4
    k.store(o, 2, tirx.if_then_else(xs[i32(1)] > 0, tirx.max(first, i32(2)), i32(0)))  # 4
    k.store(xs, 0, i32(1))
    k.store(o, 3, tirx.if_then_else(xs[i32(1)] > 0, tirx.max(first, i32(2)), i32(0)))  # 2
    with k.when(tirx.LT(tirx.max(first, i32(0)), i32(2))):
        k.store(xs, 0, i32(3))
        k.store(o, 4, tirx.max(first, i32(2)))  # 3
    k.store(o, 5, tirx.reinterpret("int32", tirx.reinterpret("float32", first)))  # 3
    k.store(xs, 0, i32(6))
    k.store(o, 6, tirx.reinterpret("int32", tirx.reinterpret("float32", first)))  # 6
    body = tirx.SeqStmt([*k.statements(), tirx.Return(i32(0))])
    attrs = tvm.ir.make_node("ir.DictAttrs", **{"global_symbol": "kernel", "tirx.noalias": True})
    return tvm.IRModule({"kernel": tirx.PrimFunc([x, out], body, PrimType("int32"), attrs=attrs)})


def run(folder: Path) -> list[int]:
    text = codegen.print_c(kernel()).replace("static int32_t kernel", "int32_t kernel")
    (folder / "k.c").write_text("#include <stdint.h>\n" + text)
    flags = ["-O1", "-shared", "-fPIC", "-fno-strict-aliasing"]
    subprocess.run(["gcc", *flags, str(folder / "k.c"), "-o", str(folder / "k.so")], check=True)
    x, out = np.array([-7, 1], np.int32), np.zeros(7, np.int32)
    ctypes.CDLL(str(folder / "k.so")).kernel(*(a.ctypes.data_as(ctypes.c_void_p) for a in (x, out)))
    return out.tolist()


WANT = [5, 4, 4, 2, 3, 3, 6]


def test_loads_are_made_anew_behind_stores(tmp_path: Path) -> None:
    assert run(tmp_path) == WANT


def test_the_back_end_alone_would_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(codegen, "bind_loads", lambda func: func)
    assert run(tmp_path) != WANT
