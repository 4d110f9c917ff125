"""Count how docstrings read: the share of functions that begin with a verb, and words that make sentences hard to read.

    python tools/prose.py                  # the counts, by room
    python tools/prose.py --gate           # exit 1 if the share of verbs or a count misses its limit: part of `make style`
    python tools/prose.py --lines [-n 40] [PATH]  # docstrings with the most such words, and functions without a verb

Verbs are listed in `tools/verbs.txt`. Words are counted over all docstrings: a sentence that needs "of" twice may have it.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHARE = 0.95  # functions whose docstring begins with a verb, at least: raise it as it grows
VERBS = frozenset((ROOT / "tools" / "verbs.txt").read_text(encoding="utf-8").split())
MOST = {
    ("of",): 32,
    ("that",): 12,
    ("what", "where", "whose"): 4,
    ("it", "its", "them", "their", "they"): 14,
    ("those", "one", "ones", "other", "others"): 7,
}  # words, and how many there should be at most per 1,000
WATCHED = frozenset(word for words in MOST for word in words)


@dataclass(frozen=True, slots=True)
class Docstring:
    """A docstring with its place."""

    path: Path
    line: int
    of_function: bool
    text: str

    @property
    def begins_with_verb(self) -> bool:
        """Return True if the first word is a verb of the list, in the imperative or the third person."""
        first = re.sub(r"[^A-Za-z]", "", next(iter(self.text.split()), "")).lower()
        forms = {first, first.removesuffix("s"), first.removesuffix("es")}
        return bool(VERBS & (forms | ({first[:-3] + "y"} if first.endswith("ies") else set())))

    @property
    def words(self) -> Counter[str]:
        """Count the words, in small letters."""
        return Counter(word.lower() for word in re.findall(r"[A-Za-z']+", self.text))

    @property
    def watched(self) -> int:
        """Count the watched words."""
        words = self.words
        return sum(words[word] for word in WATCHED)


def docstrings(path: Path) -> Iterator[Docstring]:
    """Yield the docstrings of a module, its classes and functions."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)):
            text = ast.get_docstring(node)
            if text:
                is_function = isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
                yield Docstring(path, node.body[0].lineno, is_function, text)


def product() -> list[Path]:
    """Return the modules of the product, without test helpers, each once."""
    inside = [
        path
        for path in (ROOT / "tvm_cascade").rglob("*.py")
        if path.relative_to(ROOT).parts[1] not in ("passes", "schedules", "testing")
    ]
    return sorted([*inside, *(ROOT / "passes").rglob("*.py"), *(ROOT / "schedules").rglob("*.py")])


def share(found: Sequence[Docstring]) -> float:
    """Return the share of function docstrings that begin with a verb; 1 without functions."""
    functions = [one for one in found if one.of_function]
    return sum(one.begins_with_verb for one in functions) / len(functions) if functions else 1.0


def per_thousand(found: Sequence[Docstring]) -> list[tuple[str, float, int]]:
    """Return for each group of words its name, its count per 1,000 words, and the wanted limit."""
    words = sum((one.words for one in found), Counter[str]())
    total = max(words.total(), 1)
    return [("/".join(g), 1000 * sum(words[word] for word in g) / total, most) for g, most in MOST.items()]


def shortfalls(found: Sequence[Docstring]) -> list[str]:
    """Return a sentence for the share of verbs and for each group of words that miss their limits."""
    few = f"{share(found):.1%} of function docstrings begin with a verb, {SHARE:.0%} have to"
    many = [
        f"{count:.1f} of 1,000 words are {name}, at most {most} may"
        for name, count, most in per_thousand(found)
        if count > most
    ]
    return [few] * (share(found) < SHARE) + many


def room_of(path: Path) -> str:
    """Return the room of a module: a package of `tvm_cascade`, `passes` or `schedules`."""
    parts = path.relative_to(ROOT).parts
    return "/".join(parts[:2]) if len(parts) > 2 else parts[0]


def print_report(found: Sequence[Docstring]) -> None:
    """Print the counts over all docstrings, then by room."""
    print(f"{share(found):.0%} of function docstrings begin with a verb (gate: {SHARE:.0%})")
    for name, count, most in per_thousand(found):
        print(f"{count:6.1f} per 1,000 words: {name} (wanted: {most} at most)")
    rooms: dict[str, list[Docstring]] = {}
    for one in found:
        rooms.setdefault(room_of(one.path), []).append(one)
    print("\n  verbs  " + "  ".join(words[0].rjust(5) for words in MOST) + "  room")
    for room, own in sorted(rooms.items()):
        print(f"{share(own):7.0%}  " + "  ".join(f"{count:5.1f}" for _, count, _ in per_thousand(own)) + f"  {room}")


def print_lines(found: Sequence[Docstring], most: int) -> None:
    """Print the places of the docstrings with the most watched words, then of functions without a verb."""
    heavy = sorted(found, key=lambda one: -one.watched)[:most]
    bare = [one for one in found if one.of_function and not one.begins_with_verb][:most]
    for one in heavy:
        words = ", ".join(f"{word} {n}" for word, n in one.words.most_common() if word in WATCHED)
        print(f"{one.path.relative_to(ROOT)}:{one.line}: {words}")
    for one in bare:
        print(f"{one.path.relative_to(ROOT)}:{one.line}: no verb: {one.text.splitlines()[0]}")


def main() -> None:
    """Print the report, the lines, or the verdict of the gate."""
    parser = argparse.ArgumentParser(description="How docstrings read.")
    parser.add_argument("path", nargs="?", type=Path, help="with --lines: a folder or a module")
    parser.add_argument(
        "--gate", action="store_true", help="exit 1 if too few functions begin with a verb, or a word is too frequent"
    )
    parser.add_argument("--lines", action="store_true", help="places, with line numbers")
    parser.add_argument("-n", type=int, default=40, help="entries of each list")
    asked = parser.parse_args()
    inside = None if asked.path is None else asked.path.resolve()
    found = [one for path in product() if inside is None or path.is_relative_to(inside) for one in docstrings(path)]
    if asked.gate:
        if missed := shortfalls(found):
            sys.exit("; ".join(missed) + ": `python tools/prose.py --lines` lists the places")
    elif asked.lines:
        print_lines(found, asked.n)
    else:
        print_report(found)


if __name__ == "__main__":
    main()
