"""A folder of earlier results: values computed before are read instead of computed again.

A value's key is the SHA-256 of all inputs: the whole input, such as a kernel's code (no 64-bit structural hash, which
may collide), the core, and the versions of this package and of TVM. A file holds a single value: the SHA-256 of key and
content, then the content compressed by zlib. A file is written under a temporary name and renamed, so several processes
can share the folder. A damaged or foreign file is computed and written again. Values are texts and object files, never
pickles. No failure here ends a compilation: at worst the compilation takes as long as without a cache.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

from tvm_cascade.errors import UsageError
from tvm_cascade.publish import whole_file

MOST_BYTES = 256 << 20  # of a cache folder; beyond, what was not used for longest is removed
_OWN = re.compile("[0-9a-f]{62}")  # names of values, in folders of their first two digits
_DIGEST = hashlib.sha256().digest_size


@dataclass(eq=False)
class Cache:
    """Values by key in `folder`; None: nothing is read or written."""

    folder: Path | None
    written: int = 0  # values stored by this object

    def value(self, kind: str, inputs: Callable[[], Sequence[str | bytes]], make: Callable[[], bytes]) -> bytes:
        """Return the stored value of `kind` for `inputs`, or call `make()` and store the result.

        `inputs` returns everything `make` depends on.
        """
        if self.folder is None:
            return make()
        key = self.key(kind, inputs())
        value = self.get(key)
        if value is None:
            value = make()
            self.put(key, value)
        return value

    def text(self, kind: str, inputs: Callable[[], Sequence[str | bytes]], make: Callable[[], str]) -> str:
        """Return a text in the same way as `value`."""
        return self.value(kind, inputs, lambda: make().encode()).decode()

    @staticmethod
    def key(kind: str, inputs: Sequence[str | bytes]) -> str:
        """Compute the key of a value: a SHA-256 over the versions, the kind and the inputs."""
        found = hashlib.sha256(_versions())
        for part in (kind, *inputs):
            raw = part.encode() if isinstance(part, str) else part
            found.update(f"{len(raw)} ".encode() + raw)
        return found.hexdigest()

    def get(self, key: str) -> bytes | None:
        """Return the value under a key; None if absent or damaged."""
        if self.folder is None:
            return None
        path = self._path(self.folder, key)
        try:
            raw = path.read_bytes()
        except OSError:
            return None
        if raw[:_DIGEST] != _digest(key, raw[_DIGEST:]):
            return None
        with suppress(OSError):
            os.utime(path)  # used now: `trim` removes others first
        return zlib.decompress(raw[_DIGEST:])

    def put(self, key: str, value: bytes) -> None:
        """Store a value, if the folder can be written."""
        if self.folder is None:
            return
        packed = zlib.compress(value, 1)
        with suppress(OSError, UsageError), whole_file(self._path(self.folder, key)) as made:
            made.write_bytes(_digest(key, packed) + packed)
            self.written += 1

    def trim(self, most: int = MOST_BYTES) -> None:
        """Remove the values that were not used for longest while the folder holds more than `most` bytes."""
        if self.folder is None or not self.written:
            return
        found: list[tuple[int, int, Path]] = []
        for path in self.folder.glob("[0-9a-f][0-9a-f]/*"):
            if not _OWN.fullmatch(path.name):
                continue
            with suppress(OSError):  # removed by another process meanwhile
                seen = path.stat()
                found.append((seen.st_mtime_ns, seen.st_size, path))
        excess = sum(size for _, size, _ in found) - most
        for _, size, path in sorted(found):
            if excess <= 0:
                return
            with suppress(OSError):
                path.unlink()
                excess -= size

    @staticmethod
    def _path(folder: Path, key: str) -> Path:
        return folder / key[:2] / key[2:]


NO_CACHE = Cache(None)


def cache_folder() -> Path | None:
    """Return the user's cache folder: `TVM_CASCADE_CACHE_DIR`, else `tvm-cascade` in the cache folder of the XDG
    specification.

    Return None without an absolute home folder.
    """
    if own := os.environ.get("TVM_CASCADE_CACHE_DIR"):
        return Path(own)
    base = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(base):  # the specification ignores others
        return Path(base) / "tvm-cascade"
    home = os.path.expanduser("~")
    return Path(home) / ".cache" / "tvm-cascade" if os.path.isabs(home) else None


def _digest(key: str, packed: bytes) -> bytes:
    return hashlib.sha256(key.encode() + packed).digest()


@cache
def _versions() -> bytes:
    """Hash the inputs shared by all values: this package's files, TVM with all libraries, the kind of machine."""
    found = hashlib.sha256(
        f"{sys.platform} {platform.machine()} {package_version('apache-tvm')} {package_version('numpy')}".encode()
    )
    for path in _files(os.path.dirname(__file__)):
        content = Path(path).read_bytes()
        found.update(f"{len(content)} ".encode() + content)
    tvm = find_spec("tvm")
    for path in _files(os.path.dirname(tvm.origin) + "/lib" if tvm is not None and tvm.origin else ""):
        seen = os.stat(path)
        found.update(f"{path} {seen.st_size} {seen.st_mtime_ns}".encode())
    return found.digest()


def package_version(package: str) -> str:
    """Return the version of an installed package; "" if not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _files(folder: str) -> list[str]:
    """List all files below a folder, sorted, without Python's caches. Links are followed: `passes` and `schedules` of a
    checkout are links.
    """
    walk = os.walk(folder, followlinks=True)
    found = (f"{at}/{name}" for at, _, names in walk if not at.endswith("__pycache__") for name in names)
    return sorted(path for path in found if os.path.isfile(path))
