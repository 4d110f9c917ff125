"""Print every module of the product with the first sentence of its docstring, or those whose name or sentence holds WORD.

python tools/index.py [WORD]
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_SENTENCE = re.compile(r"(.+?\.)(?:\s|$)", re.DOTALL)


def modules() -> list[tuple[str, str]]:
    """Return the modules, each with the first sentence of its docstring, in order of their names."""
    found: list[tuple[str, str]] = []
    for path in sorted(
        [*(ROOT / "tvm_cascade").rglob("*.py"), *(ROOT / "passes").rglob("*.py"), *(ROOT / "schedules").rglob("*.py")]
    ):
        name = path.relative_to(ROOT)
        if name.parts[0] == "tvm_cascade" and name.parts[1] in ("passes", "schedules", "testing"):
            continue
        text = ast.get_docstring(ast.parse(path.read_text())) or ""
        sentence = _SENTENCE.match(text)
        found.append((str(name), " ".join((sentence[1] if sentence else text).split())))
    return found


def main() -> None:
    """Print the index."""
    word = sys.argv[1].lower() if len(sys.argv) > 1 else ""
    for name, sentence in modules():
        if word in f"{name} {sentence}".lower():
            print(f"{name:56} {sentence}")


if __name__ == "__main__":
    main()
