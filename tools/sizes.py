"""Print the sizes of the product: lines of code by room, the longest files, the longest functions, those of most parameters.

    python tools/sizes.py [-n 10]

Lines of code leave out docstrings, comments and blank lines. A report, no limit: a long file that reads from top to bottom is
better than three that have to be read side by side.
"""

from __future__ import annotations

import argparse
import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING}


def code_lines(text: str, tree: ast.Module) -> int:
    """Return the number of lines of code of a module, without docstrings, comments and blank lines."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE and token.type != tokenize.ENDMARKER:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and isinstance(body, list) and body:
            first = body[0]
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                lines.difference_update(range(first.lineno, (first.end_lineno or first.lineno) + 1))
    return len(lines)


def parameters(arguments: ast.arguments) -> int:
    """Return the number of parameters of a function, without `self` and `cls`."""
    names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"])) + bool(arguments.vararg) + bool(arguments.kwarg)


def product() -> list[Path]:
    """Return the modules of the product: without the package's own test helpers, each once."""
    inside = [
        p
        for p in (ROOT / "tvm_cascade").rglob("*.py")
        if p.relative_to(ROOT).parts[1] not in ("passes", "schedules", "testing")
    ]
    return sorted([*inside, *(ROOT / "passes").rglob("*.py"), *(ROOT / "schedules").rglob("*.py")])


def main() -> None:
    """Print the report."""
    parser = argparse.ArgumentParser(description="Sizes of rooms, files and functions.")
    parser.add_argument("-n", type=int, default=10, help="entries of each list")
    most = parser.parse_args().n
    rooms: Counter[str] = Counter()
    files: Counter[str] = Counter()
    longest: Counter[str] = Counter()
    widest: Counter[str] = Counter()
    for path in product():
        text = path.read_text()
        tree = ast.parse(text)
        name = path.relative_to(ROOT)
        count = code_lines(text, tree)
        rooms[name.parts[0] if name.parts[0] != "tvm_cascade" else name.parts[1].removesuffix(".py")] += count
        files[str(name)] = len(text.splitlines())
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                longest[f"{name}: {node.name}"] = (node.end_lineno or node.lineno) - node.lineno + 1
                widest[f"{name}: {node.name}"] = parameters(node.args)
    small = sum(length <= 50 for length in files.values())
    print(f"{sum(rooms.values()):,} lines of code in {len(files)} files; {small} of 50 lines or fewer")
    for title, counts in (("code by room", rooms), ("files", files), ("functions", longest), ("parameters", widest)):
        print(f"\n{title}")
        for name, count in counts.most_common(most):
            print(f"{count:8,}  {name}")


if __name__ == "__main__":
    main()
