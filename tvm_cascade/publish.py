"""Write files and folders atomically: under a hidden name in the same folder, then renamed.

A killed process leaves at most a hidden file or folder, removed by the next process that writes to that folder. A
writer holds a lock (a hidden file beside, by `filelock`), which ends with the process: a locked file is still being
written.
"""

from __future__ import annotations

import ctypes
import errno
import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tvm_cascade.errors import UsageError
from tvm_cascade.plain_files import why_not_replaced

_HIDDEN = ".tvm-cascade-"  # begins the name of everything unfinished
_LOCK = ".lock"  # ends the names of lock files
_PREVIOUS = ".tvm-cascade_previous-"  # of a folder about to be replaced, where two folders cannot be swapped
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EROFS)  # errors of a write, which name no file

Carry = Callable[[Path, Path], object]


@contextmanager
def publish(folder: Path, carry: Carry | None = None) -> Iterator[Path]:
    """Yield an empty folder to fill, which replaces `folder`, with any content, if the block does not raise.

    `carry(old, new)` is called last, if `folder` exists, to copy kept files; a lock keeps others from publishing to the
    same parent meanwhile. Missing parents are created, and removed again if the block raises. Whether `folder` may be
    replaced is for the caller to check first. If the system can swap two folders (Linux, macOS), `folder` is the old or
    the new folder at every moment.

    Raises `UsageError` if the folder cannot be written.
    """
    if why := why_not_replaced(folder, folder=True):
        raise UsageError(f"cannot write a folder at {folder}, which {why}: name a new folder")
    place = folder.resolve()
    missing = [parent for parent in place.parents if not parent.exists()]
    staging: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place.parent)
        with _hidden(place.parent, None) as staging:
            yield staging
            with _locked(place.parent / f"{_HIDDEN}turn"):
                if carry is not None and place.exists():
                    carry(place, staging)
                _put(staging, place)
    except BaseException as error:
        for parent in missing:  # innermost first
            try:
                parent.rmdir()
            except OSError:
                break  # it was never made, or someone else has put something there
        if isinstance(error, OSError) and _is_of(error, staging, place):
            raise UsageError(f"cannot write {folder}: {error.strerror}{_remedy(error, place)}") from None
        raise


def require_empty(old: Path, _new: Path) -> None:
    """Raise `UsageError` unless `old` is an empty folder: a `carry` for folders that must be new."""
    if not old.is_dir() or any(old.iterdir()):
        raise UsageError(f"{old} exists and is not empty; name a new folder")


@contextmanager
def whole_file(path: str | Path) -> Iterator[Path]:
    """Yield the name of a new file with the same suffix, which replaces `path` if the block does not raise.

    Create missing parents. Write /dev/null directly. Raises `UsageError` if `path` cannot be written, and for pipes,
    other devices and files opened by a process, such as /dev/stdout.
    """
    if why := why_not_replaced(path):
        raise UsageError(f"cannot write {path}, which {why}: name a file")
    place = Path(path).resolve()
    staging: Path | None = None
    try:
        if place.exists() and not place.is_file():
            yield place
            return
        place.parent.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(place.parent)
        with _hidden(place.parent, place.suffix) as staging:
            yield staging
            if place.exists():
                shutil.copymode(place, staging)
            staging.replace(place)
    except BaseException as error:
        if isinstance(error, OSError) and _is_of(error, staging, place):
            raise UsageError(f"cannot write {path}: {error.strerror}{_remedy(error, place)}") from None
        raise


@contextmanager
def _hidden(parent: Path, suffix: str | None) -> Iterator[Path]:
    """Yield a new locked file, or an empty folder if `suffix` is None; remove it at the end if still present."""
    path = parent / f"{_HIDDEN}{secrets.token_hex(6)}{suffix or ''}"
    with _locked(path):
        if suffix is None:
            path.mkdir()
        else:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            yield path
        finally:
            _remove(path)


def _remove(path: Path) -> None:
    """Remove a file or folder, if present and permitted; remove a link itself, not its target."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            path.unlink(missing_ok=True)


def _remove_leftovers(parent: Path) -> None:
    """Remove unfinished files and folders of ended processes in `parent`."""
    for path in {p.with_name(p.name.removesuffix(_LOCK)) for p in parent.glob(f"{_HIDDEN}*")}:
        with (
            suppress(OSError),
            _locked(path, wait=False),
        ):  # OSError: still being written, somebody else's, or no locks here
            _remove(path)


@contextmanager
def _locked(path: Path, wait: bool = True) -> Iterator[None]:
    """Hold the exclusive lock on `path`.

    Without `wait` raise `OSError` if the lock is held elsewhere or unavailable. With `wait` go on without a lock on a
    file system without locks: nobody can then take the file for a leftover either.
    """
    from filelock import FileLock  # here: it takes 20 ms to import

    lock = FileLock(f"{path}{_LOCK}", timeout=-1 if wait else 0)
    try:
        lock.acquire(poll_interval=0.005)
    except (OSError, NotImplementedError) as error:
        if not wait:
            raise OSError(*error.args) from None
    try:
        yield
    finally:
        if lock.is_locked:
            with suppress(OSError):  # Windows removes it as it is released
                # while it is held: whoever waits for it sees that it has gone, and makes it anew
                os.unlink(lock.lock_file)
            lock.release()


def _put(staging: Path, place: Path) -> None:
    """Move `staging` to `place`; a folder there is removed."""
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
    """Swap two paths atomically; return False if the system cannot."""
    if sys.platform == "win32":
        return False
    libc = ctypes.CDLL(None, use_errno=True)
    paths = (os.fsencode(one), os.fsencode(other))
    if sys.platform == "darwin":
        return hasattr(libc, "renamex_np") and libc.renamex_np(*paths, ctypes.c_uint(2)) == 0  # RENAME_SWAP
    here = -100  # AT_FDCWD
    if not hasattr(libc, "renameat2"):
        return False
    return libc.renameat2(here, paths[0], here, paths[1], ctypes.c_uint(2)) == 0  # RENAME_EXCHANGE


def _is_of(error: OSError, staging: Path | None, place: Path) -> bool:
    """Test whether an error comes from writing here, not from unrelated work meanwhile."""
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
    """Return the end of the message on write access to the parent folder, for errors that hint at missing access."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.EBUSY, errno.EXDEV):
        return f"; it is written beside its place and renamed, which needs leave to write to {place.parent}"
    return ""
