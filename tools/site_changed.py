"""Exit 0 if pages of the site or docstrings differ from a revision, 1 if not: CI builds the site only then.

python tools/site_changed.py [REVISION]  # default: HEAD~1; without such a revision everything is new
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = ("docs", "tutorials", "rfc", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "pyproject.toml", "Makefile")
CODE = ("tvm_cascade", "passes", "schedules")


def git(*arguments: str) -> str | None:
    """Return what git prints, or None if it fails."""
    done = subprocess.run(("git", *arguments), cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else None


def docstrings(source: str) -> list[str | None]:
    """Return the docstrings of a module, of its classes and of its functions, with signatures."""
    return list(_documented(ast.parse(source)))


def _documented(tree: ast.AST) -> Iterator[str | None]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{node.name}({ast.unparse(node.args)})"
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield ast.get_docstring(node)


def changed(revision: str) -> bool:
    """Return True if a page differs from `revision`, or a docstring or signature in code that differs."""
    pages = git("diff", "--name-only", revision, "--", *PAGES)
    code = git("diff", "--name-only", revision, "--", *(f"{room}/*.py" for room in CODE))
    if pages is None or code is None or pages:
        return True
    for name in code.splitlines():
        path, before = ROOT / name, git("show", f"{revision}:{name}")
        if before is None or not path.is_file():
            return True
        if docstrings(before) != docstrings(path.read_text(encoding="utf-8")):
            return True
    return False


if __name__ == "__main__":
    sys.exit(not changed(sys.argv[1] if len(sys.argv) > 1 else "HEAD~1"))
