"""Files of a compiled folder that the user has edited or added, which a new compilation preserves."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection
from pathlib import Path

from tvm_cascade.emit.image import HOST_FOLDER, METADATA
from tvm_cascade.plain_files import readable

_BUILT = ("build", HOST_FOLDER)  # made again at every compilation


def file_digests(folder: Path) -> dict[str, str]:
    """Hash every file that a user may edit by SHA-256."""
    found: dict[str, str] = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_file() and name.parts[0] not in _BUILT and str(name) != METADATA:
            found[str(name)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found


def users_files(folder: Path) -> tuple[str, ...]:
    """List files in a project folder added or edited by the user since it was written."""
    try:
        written = json.loads(readable(folder / METADATA).read_text(encoding="utf-8")).get("written", {})
    except (OSError, ValueError, AttributeError):
        written = {}
    return tuple(n for n, digest in file_digests(folder).items() if written.get(n) != digest)


def keep_users_files(old: Path, new: Path, generated: Collection[str]) -> tuple[str, ...]:
    """Copy files added or edited by the user in `old` to `new`, except names in `generated`; return the names."""
    kept = tuple(n for n in users_files(old) if n not in generated)
    for name in kept:
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(old / name, new / name)
    return kept
