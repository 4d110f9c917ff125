"""Compiled C sources in the cache.

An object is kept under a key from the source, the headers in the folders searched first, the compiler and the options.
The compiler's own headers are stored beside, and compared before use. Folders are not part of the key: this project's
objects contain no paths.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from tvm_cascade.cache import Cache

_SEARCHED = ("CPATH", "C_INCLUDE_PATH", "COMPILER_PATH", "GCC_EXEC_PREFIX")  # variables that gcc reads


@dataclass(frozen=True)
class CachedObject:
    """The cached object of one C source."""

    cache: Cache
    compiler: str
    options: tuple[str, ...]  # without folders of headers
    source: Path
    includes: tuple[Path, ...]  # folders of the project's headers

    def restore(self, made: Path) -> bool:
        """Write the object from the cache to `made`; returns whether there was one."""
        value = None if self.cache.folder is None else self.cache.get(self._key)
        if value is None:
            return False
        headers, _, compiled = value.partition(b"\n")
        if any(_digest(path) != digest for path, digest in json.loads(headers).items()):
            return False
        made.write_bytes(compiled)
        return True

    def list_headers(self, made: Path) -> tuple[str, ...]:
        """Return options that make the compiler list the headers for `keep`."""
        return () if self.cache.folder is None else ("-MD", "-MF", f"{made}.d")

    def keep(self, made: Path) -> None:
        """Store the object `made`, which was compiled with the options of `list_headers`."""
        if self.cache.folder is None:
            return
        listed = Path(f"{made}.d")
        headers = {path: _digest(path) for path in self._foreign(listed.read_text(encoding="utf-8"))}
        listed.unlink()
        self.cache.put(self._key, json.dumps(headers).encode() + b"\n" + made.read_bytes())

    @cached_property
    def _key(self) -> str:
        seen = os.stat(self.compiler)
        searched = [os.environ.get(name, "") for name in _SEARCHED]
        compiler = f"{os.path.realpath(self.compiler)} {seen.st_size} {seen.st_mtime_ns} {searched}"
        own = [(h.name, h.read_bytes()) for folder in self.includes for h in sorted(folder.glob("*.h"))]
        parts = [compiler, repr(self.options), self.source.name, self.source.read_bytes()]
        return Cache.key("C object", [*parts, *(part for header in own for part in header)])

    def _foreign(self, rule: str) -> Iterator[str]:
        """Find the headers in a make rule that belong to the compiler, not to the project."""
        for word in re.split(r"(?<!\\)\s+", rule.partition(": ")[2].replace("\\\n", " ").strip()):
            path = Path(re.sub(r"\\([ #])", r"\1", word).replace("$$", "$"))
            if path != self.source and path.parent not in self.includes:
                yield str(path)


def _digest(path: str) -> str:
    """Hash a file by SHA-256; "" if there is none."""
    try:
        return hashlib.sha256(Path(path).read_bytes()).hexdigest()
    except OSError:
        return ""
