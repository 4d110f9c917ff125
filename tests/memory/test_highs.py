"""Integer programs leave the standard output of the process alone."""

from __future__ import annotations

import subprocess
import sys

TALKS = """
import ctypes
from tvm_cascade.memory.highs import silent_output
libc = ctypes.CDLL(None)
print("before")
with silent_output():
    libc.puts(b"of another language")
libc.puts(b"after")
libc.fflush(None)
"""


def test_what_other_languages_print_is_dropped_even_where_they_buffer_it() -> None:
    done = subprocess.run([sys.executable, "-c", TALKS], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["before", "after"]
