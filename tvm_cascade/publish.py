"""Atomic writes of files and folders: they are written under a hidden name in the same folder, then renamed.

A process that is killed leaves at most a hidden file or folder, which the next process that writes to that folder removes.
A writer holds a lock on it, which ends with the process: whatever is locked is still being written.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tvm_cascade.errors import UsageError

_HIDDEN = ".tvm-cascade-"  # begins the name of everything unfinished
_PREVIOUS = ".tvm-cascade_previous-"  # of a folder about to be replaced, where two folders cannot be swapped
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # errors of a write, which name no file

Carry = Callable[[Path, Path], object]


@contextmanager
def publish(folder: Path, carry: Carry | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill; it replaces `folder`, whatever that holds, if the block does not raise.

    `carry(old, new)` is called last, if `folder` exists, to copy what is to be kept; a lock keeps others from publishing
    to the same parent meanwhile. Missing parents are created, and removed again if the block raises. Whether `folder`
    may be replaced is for the caller to check first. Where the system can swap two folders (Linux, macOS), `folder` is
    the old or the new one at every moment.

    Raises `UsageError` where it cannot be written.
    """
    place = folder.resolve()
    missing = [parent for parent in place.parents if not parent.exists()]
    staging: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place.parent)
        staging, held = _hidden(place.parent, None)
        try:
            yield staging
            with _alone_in(place.parent):
                if carry is not None and place.exists():
                    carry(place, staging)
                _put(staging, place)
        finally:
            os.close(held)
    except BaseException as error:
        if staging is not None:
            shutil.rmtree(staging, ignore_errors=True)
        for parent in missing:  # innermost first
            try:
                parent.rmdir()
            except OSError:
                break  # it was never made, or someone else has put something there
        if isinstance(error, OSError) and _is_of(error, staging, place):
            raise UsageError(f"cannot write {folder}: {error.strerror}{_remedy(error, place)}") from None
        raise


def require_empty(old: Path, _new: Path) -> None:
    """A `carry` for folders that must be new: raises `UsageError` where `old` is not an empty folder."""
    if not old.is_dir() or any(old.iterdir()):
        raise UsageError(f"{old} exists and is not empty; name a new folder")


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield the name of a new file of the same suffix, which replaces `path` if the block does not raise.

    Missing parents are created. A path that is no regular file, such as /dev/stdout, is written directly. Raises
    `UsageError` where it cannot be written.
    """
    place = Path(path).resolve()
    staging: Path | None = None
    try:
        if place.exists() and not place.is_file():
            yield place
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place.parent)
        staging, held = _hidden(place.parent, place.suffix)
        try:
            yield staging
            if place.exists():
                shutil.copymode(place, staging)
            staging.replace(place)
        finally:
            os.close(held)
    except BaseException as error:
        if staging is not None:
            staging.unlink(missing_ok=True)
        if isinstance(error, OSError) and _is_of(error, staging, place):
            raise UsageError(f"cannot write {path}: {error.strerror}{_remedy(error, place)}") from None
        raise


def _hidden(parent: Path, suffix: str | None) -> tuple[Path, int]:
    """A new file, or an empty folder where `suffix` is None, and an open descriptor of it that holds its lock."""
    while True:
        path = parent / f"{_HIDDEN}{secrets.token_hex(6)}{suffix or ''}"
        if suffix is None:
            path.mkdir()
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            held = os.open(path, os.O_RDONLY)
        except FileNotFoundError:
            continue  # taken for a leftover before it was locked
        try:
            fcntl.flock(held, fcntl.LOCK_EX)
        except OSError:
            return path, held  # a file system without locks: nothing there is ever taken for a leftover
        if path.exists():
            return path, held
        os.close(held)


def _remove_leftovers(parent: Path) -> None:
    """Remove unfinished files and folders in `parent` whose processes have ended."""
    for path in parent.glob(f"{_HIDDEN}*"):
        try:
            held = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        except OSError:
            continue  # finished meanwhile, or somebody else's
        with suppress(OSError):  # still being written, or no locks here: it harms nobody
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
        os.close(held)


@contextmanager
def _alone_in(parent: Path) -> Iterator[None]:
    """Hold an exclusive lock on `parent`, where the file system has locks."""
    held = os.open(parent, os.O_RDONLY)
    try:
        with suppress(OSError):  # without locks the last one wins all the same, but may take over less of the others'
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


def _put(staging: Path, place: Path) -> None:
    """Move `staging` to `place`; a folder that is there is removed."""
    if not place.exists():
        staging.rename(place)
    elif _swap(staging, place):
        shutil.rmtree(staging, ignore_errors=True)
    else:  # killed between these two lines, the old folder has another name
        previous = place.with_name(f"{_PREVIOUS}{secrets.token_hex(6)}")
        place.rename(previous)
        staging.rename(place)
        shutil.rmtree(previous, ignore_errors=True)


def _swap(one: Path, other: Path) -> bool:
    """Exchange two paths atomically; returns whether the system could."""
    libc = ctypes.CDLL(None, use_errno=True)
    paths = (os.fsencode(one), os.fsencode(other))
    if sys.platform == "darwin":
        return hasattr(libc, "renamex_np") and libc.renamex_np(*paths, ctypes.c_uint(2)) == 0  # RENAME_SWAP
    here = -100  # AT_FDCWD
    if not hasattr(libc, "renameat2"):
        return False
    return libc.renameat2(here, paths[0], here, paths[1], ctypes.c_uint(2)) == 0  # RENAME_EXCHANGE


def _is_of(error: OSError, staging: Path | None, place: Path) -> bool:
    """Whether an error is of writing here rather than of something else that was done meanwhile."""
    if not isinstance(error.filename, str | bytes):
        return error.errno in _FULL
    named = Path(os.fsdecode(error.filename))
    return (
        named == place
        or named in place.parents
        or (staging is not None and named.is_relative_to(staging))
        or (named.name.startswith((_HIDDEN, _PREVIOUS)) and named.parent == place.parent)
    )


def _remedy(error: OSError, place: Path) -> str:
    """The end of the message: why write access to the parent folder is needed, for errors that hint at its lack."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV):
        return f"; it is written beside its place and renamed, which needs leave to write to {place.parent}"
    return ""
