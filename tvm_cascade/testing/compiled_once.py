"""A launcher for compilers of C++ that keeps objects, to be `CMAKE_CXX_COMPILER_LAUNCHER`: equal files are compiled once.

An object is kept in the folder that the environment variable `TVM_CASCADE_TEST_OBJECTS` names, by the digest of the options
and of the preprocessed text. So headers are looked for, and rules with their names written, every time.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

FOLDER = "TVM_CASCADE_TEST_OBJECTS"


def main(command: Sequence[str]) -> int:
    """Run the compiler's command, or take what the same one has made; the exit status."""
    if "-c" not in command:
        return subprocess.run(command, check=False).returncode
    at = command.index("-o")
    made, others = Path(command[at + 1]), [*command[:at], *command[at + 2 :]]
    text = subprocess.run([word for word in others if word != "-c"] + ["-E", "-P"], stdout=subprocess.PIPE, check=False)
    if text.returncode:
        return text.returncode
    source = command[command.index("-c") + 1]
    rules = [others[others.index(word) + 1] for word in ("-MF", "-MT") if word in others]
    options = [word for word in others if word not in (source, *rules)]
    kept = Path(os.environ[FOLDER]) / hashlib.sha256(repr(options).encode() + text.stdout).hexdigest()
    if not kept.exists():
        status = subprocess.run(command, check=False).returncode
        if status:
            return status
        kept.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            shutil.copy(made, Path(folder) / "object")
            (Path(folder) / "object").replace(kept)
    else:
        shutil.copy(kept, made)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
