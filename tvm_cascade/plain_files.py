"""Refuse special files for reading or writing whole: devices without an end, pipes without a writer."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

_STREAMS = ("/dev/fd/", "/dev/std", "/proc/")  # begin the names of what a process has open


def readable(path: str | Path) -> Path:
    """Return `path`. Raise `OSError` for a device, such as /dev/zero, since its contents may have no end, and for a
    named pipe, since it may never get a writer; open pipes, such as /dev/stdin, are read.
    """
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return Path(path)
    if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise OSError(errno.EINVAL, "is a device, no plain file: name a file", str(path))
    if stat.S_ISFIFO(mode) and not os.path.abspath(path).startswith(_STREAMS):
        raise OSError(errno.EINVAL, "is a named pipe, no plain file: write its contents to a file first", str(path))
    return Path(path)


def why_not_replaced(path: str | Path, folder: bool = False) -> str:
    """Return why a file, or folder, cannot be written at `path` as a whole; "" if nothing is in the way.

    /dev/null is written in place, and stays; other devices are refused.
    """
    if os.path.abspath(path).startswith(_STREAMS):
        return "is what a process has open"
    try:
        mode = os.stat(path).st_mode
    except OSError:
        return ""
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return "is a pipe or socket"
    device = not (stat.S_ISDIR(mode) or stat.S_ISREG(mode))
    return "is a device" if device and (folder or not os.path.samefile(path, os.devnull)) else ""
