"""The host, that is, the compiling machine: generic kernels, built by the host's compiler."""

from __future__ import annotations

from tvm_cascade.cores.core import Core
from tvm_cascade.cores.families import HOST

CORE = Core(
    name="host",
    family=HOST,
    mcpu="",
    triple="",
    gcc_flags=(),
    default_board="host",
    runs_on=("host",),
    align=16,
    fpu=True,
)
