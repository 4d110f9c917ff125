"""The interface of an emitted network: what it accepts, and its round trip through JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from tvm_cascade.emit.network import EmittedNetwork, Interface
from tvm_cascade.errors import UsageError
from tvm_cascade.tensor_spec import TensorSpec


def test_interface_survives_json(toy: EmittedNetwork) -> None:
    interface = toy.interface
    assert Interface.from_dict(json.loads(json.dumps(interface.to_dict()))) == interface


def test_inputs_are_packed_in_order_and_checked(toy: EmittedNetwork) -> None:
    a, b = np.arange(24, dtype=np.int8).reshape(1, 24), np.zeros((1, 6, 4), np.int8)
    assert toy.interface.pack_inputs((a, b)) == bytes(range(24)) + bytes(24)
    strided = np.arange(48, dtype=np.int8).reshape(1, 48)[:, ::2]
    assert toy.interface.pack_inputs((strided, b))[:3] == bytes((0, 2, 4))
    with pytest.raises(UsageError, match="1 input arrays given, the network has 2"):
        toy.interface.pack_inputs((a,))
    with pytest.raises(UsageError, match=r"input 'serving/a:0' is float32\[1, 24\], the network wants int8\[1, 24\]"):
        toy.interface.pack_inputs((a.astype(np.float32), b))
    with pytest.raises(UsageError, match=r"input 'serving/a:0' is int8\[24\], the network wants int8\[1, 24\]"):
        toy.interface.pack_inputs((a.reshape(24), b))


def test_outputs_are_unpacked() -> None:
    specs = (TensorSpec("p", (1, 2), "int16", c_name="p"), TensorSpec("q", (3,), "uint8", c_name="q"))
    p, q = Interface("n", (), specs, 8, 4).unpack_outputs(b"\x01\x00\xff\xff\x07\x08\x09")
    assert p.tolist() == [[1, -1]] and q.tolist() == [7, 8, 9]


def test_names_that_could_escape_are_refused(toy: EmittedNetwork) -> None:
    with pytest.raises(UsageError, match="is no C identifier"):
        Interface("n", (TensorSpec("x", (1,), "int8", c_name="x */"),), (), 8, 4)
    with pytest.raises(UsageError, match="is no C identifier"):
        replace(toy, name="a b")
    with pytest.raises(UsageError, match="must be a plain name"):
        replace(toy, files={**toy.files, "../x.c": b""})
    with pytest.raises(UsageError, match=r"lacks gone\.o"):
        replace(toy, objects=("gone.o",))
    damaged = toy.interface.to_dict()
    damaged["outputs"] = [{**spec, "bytes": 25} for spec in damaged["outputs"]]  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match=r"25 bytes do not match int8\[1, 24\]"):
        Interface.from_dict(damaged)
