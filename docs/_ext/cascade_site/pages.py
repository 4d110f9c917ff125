"""Pages that stand elsewhere in the repository: rfcs, results of benchmarks, how to contribute, and what changed.

They are copied into the sources of the site before it is built. A link to a file of the repository becomes a link to its page,
or to the file where the repository is published, or plain text.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from sphinx.application import Sphinx

from cascade_site.repository import REPOSITORY, ROOT

_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)\s]+)\)")
_FOLDERS = {"rfc": "rfc", "benchmarks/results": "benchmarks"}  # folder of the repository: folder of the site
_FILES = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
_TEXTS = {
    "rfc": (
        "# Why things are so",
        "Every larger design has an rfc: the problem, what was chosen, what was not, and what it measured. Modules cite them, "
        "and the papers behind them, by section.",
    ),
    "benchmarks": (
        "# Benchmarks",
        "Results as the files of `benchmarks/results/` hold them, each with the command that gives it. "
        "Counts and ratios, wherever there is something to count: seconds depend on the machine.",
    ),
}


def setup(app: Sphinx) -> None:
    app.connect("config-inited", lambda app, _config: copy_pages(Path(app.srcdir)))


def copy_pages(site: Path) -> None:
    """Write all pages, and an index of each folder, into `site`; files that are the same already are left alone."""
    where = {path: page for source, folder in _FOLDERS.items() for path, page in _pages_of(source, folder)}
    where |= _FILES
    for path, page in where.items():
        _write(site / page, _relinked((ROOT / path).read_text(encoding="utf-8"), path, page, where))
    for source, folder in _FOLDERS.items():
        title, text = _TEXTS[folder]
        names = "\n".join(PurePosixPath(page).stem for _, page in _pages_of(source, folder))
        _write(site / folder / "index.md", f"{title}\n\n{text}\n\n```{{toctree}}\n:maxdepth: 1\n\n{names}\n```\n")


def _pages_of(source: str, folder: str) -> list[tuple[str, str]]:
    return [(f"{source}/{p.name}", f"{folder}/{p.name}") for p in sorted((ROOT / source).glob("*.md"))]


def _relinked(text: str, path: str, page: str, where: dict[str, str]) -> str:
    def replaced(link: re.Match[str]) -> str:
        target = _normal(PurePosixPath(path).parent / link[2].partition("#")[0])
        if target in where:
            return f"[{link[1]}]({_relative(where[target], page)})"
        if target.startswith("docs/"):
            return f"[{link[1]}]({_relative(target.removeprefix('docs/'), page)})"
        address = REPOSITORY.file(target)
        return f"[{link[1]}]({address})" if address else link[1]

    return _LINK.sub(replaced, text)


def _normal(path: PurePosixPath) -> str:
    return (ROOT / path).resolve().relative_to(ROOT).as_posix()


def _relative(target: str, page: str) -> str:
    return "../" * (len(PurePosixPath(page).parts) - 1) + target


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.write_text(text, encoding="utf-8")
