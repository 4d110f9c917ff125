"""The folder's main.c on the host, under AddressSanitizer and UndefinedBehaviorSanitizer."""

from __future__ import annotations

import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tvm_cascade.emit.network import EmittedNetwork
from tvm_cascade.errors import ToolError
from tvm_cascade.testing.builds import build_host


@pytest.fixture
def sanitized(tmp_path: Path) -> Callable[[EmittedNetwork, bytes], subprocess.CompletedProcess]:
    def build_and_run(network: EmittedNetwork, data: bytes) -> subprocess.CompletedProcess:
        try:
            program = build_host(tmp_path, network, sanitize=True)
        except ToolError as error:
            pytest.skip(f"the compiler's sanitizers are not installed: {error}")
        (tmp_path / "inputs.bin").write_bytes(struct.pack("<I", 0xA5) + data)
        return subprocess.run((str(program),), cwd=tmp_path, capture_output=True, text=True, check=False)

    return build_and_run


def test_clean_and_correct(
    tmp_path: Path,
    toy: EmittedNetwork,
    toy_inputs: list[tuple[np.ndarray, np.ndarray]],
    reference: Callable,
    sanitized: Callable,
) -> None:
    done = sanitized(toy, b"".join(bytes(4) + toy.interface.pack_inputs(one) for one in toy_inputs))
    assert (done.returncode, done.stderr) == (0, "")
    data = (tmp_path / "results.bin").read_bytes()[8:]
    for k, (a, b) in enumerate(toy_inputs):
        record = data[k * 52 : (k + 1) * 52]
        assert struct.unpack_from("<iI", record, 24) == (0, 72)
        (output,) = toy.interface.unpack_outputs(record[:24])
        np.testing.assert_array_equal(output, reference(a, b))


def test_a_write_behind_the_arena_is_caught(
    make_toy: Callable[..., EmittedNetwork], toy_inputs: list[tuple[np.ndarray, np.ndarray]], sanitized: Callable
) -> None:
    network = make_toy(extra="{ volatile int k = 80; toy_arena[k] = 1; }")
    done = sanitized(network, bytes(4) + network.interface.pack_inputs(toy_inputs[0]))
    assert done.returncode != 0 and "out of bounds" in done.stderr
