"""The arena search on minimalloc's public cases: `python benchmarks/arena.py FOLDER` (of the `?.1048576.csv` files)."""

from __future__ import annotations

import sys
from pathlib import Path

from tvm_cascade.memory.minimalloc_csv import run

PUBLISHED = {"A": 7.6, "B": 4.6, "C": 0.9, "D": 4.9, "E": 7.0, "F": 10.7}  # seconds, minimalloc's C++, measured


def main() -> None:
    print("| case | peak | bound | seconds | minimalloc |\n| --- | --- | --- | --- | --- |")
    for path in sorted(Path(sys.argv[1]).glob("?.1048576.csv")):
        found = run(path, 1_048_576)
        name = path.name[0]
        print(
            f"| {name} | {found['peak_bytes']} | {found['bound_bytes']} | {found['seconds']} | {PUBLISHED.get(name)} |"
        )


if __name__ == "__main__":
    main()
