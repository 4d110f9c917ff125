"""Folders that appear whole or not at all: written beside their place under another name, then renamed."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def publish(folder: Path) -> Iterator[Path]:
    """Give an empty folder to fill; it takes the place of `folder`, whatever lies there, if the block ends well.

    Parents that are missing are made, and removed again where the block raises. Whether `folder` may be replaced is
    for the caller to check first.
    """
    folder = folder.absolute()
    missing = [parent for parent in folder.parents if not parent.exists()]
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield staging
        staging.chmod(0o755)
        _put(staging, folder)
    except BaseException:
        shutil.rmtree(staging, ignore_errors=True)
        for parent in missing:  # innermost first
            try:
                parent.rmdir()
            except OSError:
                break  # someone else has put something there
        raise


def _put(staging: Path, folder: Path) -> None:
    """One rename; what lies there is moved aside before it and removed after it."""
    if not folder.exists():
        staging.rename(folder)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{folder.name}-old-", dir=folder.parent))
    folder.rename(old / "project")
    staging.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
