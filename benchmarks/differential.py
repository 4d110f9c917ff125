"""Random networks and operators against the frameworks, for as long as one likes: `make differential`.

    python benchmarks/differential.py [--minutes N | --graphs N] [--operators] [--seed S] [--jobs J] [--cores CORE ...]

Graphs of `.tflite`, `.onnx` (opsets 7 to 28; float, QDQ, QLinear) and `.pt2` files, and independent operators by hundreds in
one file, each with planning options at random, compiled for the host and for emulated cores, or planned and run in the
process that checks it, which takes a third of the time: six of eight on the host. The oracles are LiteRT's
reference kernels, ONNX Runtime without optimizations, and torch, where they are installed. A run takes a fresh seed; with
`--seed` it is that one's, and goes on where its log in `build/differential/` ends. Outcomes: right; refused in a sentence; the
reference is defective or refuses, by the rule that knows it (`docs/references.md`); a fault of this project, with the command
that shows it again and the smallest prefix of operators that still fails. Exit status 1 where there is a fault. What has not
ended half as much time after the minutes (ten minutes at most) is stopped, and not counted. `--graphs`
takes the first N graphs of a seed instead (of 0, if none is given), for `make bench`; `--operators` takes independent operators
alone, all of them on cores. Results go to `benchmarks/results/differential.md`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from shutil import which
from typing import Any

os.environ["TVM_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"  # every case is a fork of this process

import numpy as np

from tvm_cascade.cores import get_core
from tvm_cascade.testing.forked import PASS, REFUSED, Outcome, forked
from tvm_cascade.testing.random_models.check import DISPUTED, FAULTS, Case, Stopped, apart, check, examined, smallest
from tvm_cascade.testing.random_models.draw import draw, draw_operators
from tvm_cascade.testing.random_models.model import FORMS, RandomModel
from tvm_cascade.testing.random_models.operators import ANY, draw_any_operators

RESULTS = Path(__file__).parent / "results"
LOGS = Path(__file__).parents[1] / "build" / "differential"
CORES = ("cortex-m4", "cortex-m0plus", "cortex-m7", "cortex-m55", "cortex-m33", "riscv32")
_ORACLES = {"tflite": "ai_edge_litert", "onnx": "onnxruntime", "pt2": "torch"}  # door -> module that it needs
_BATCH = {"host": 100, "cortex-m0plus": 40}  # operators in one file; 200 on cores of more RAM
_FEW = 15  # in a file that torch exports anew for each operator that it has no form of
_TURNS = (  # whether the case is a graph, and how it is run
    (True, "host"), (False, "host"), (True, "planned"), (False, "planned"), (True, "core"), (False, "core"),
    (True, "planned"), (False, "planned"), (True, "core"), (False, "core"), (True, "planned"), (True, "planned"),
)  # fmt: skip
_GRACE = 10  # most minutes for what runs when the time is over; longer, and it is stopped and not counted
_SECONDS = 600  # of processor time for one task, beside its cases, which have processes of their own
_BITS = 20  # of a case's number in its seed
HEAD = """# Random networks and operators against the frameworks

Written by `benchmarks/differential.py` (`make differential`): graphs and independent operators of random `.tflite`, `.onnx`
and `.pt2` files, compiled with planning options at random and run on the host and on emulated cores. Right: every integer
equal, floats within 2e-5 of the largest, quantized ONNX off by a step only at ties of its float reference. A row is a run;
the minutes are those of the clock, on machines with other work. Before seed 1886991082, operators that were wrong together and
right one by one counted as right.

| seed | minutes | graphs | operators | right | refused | reference defects | faults |
| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |
"""


@dataclass(frozen=True, slots=True)
class Task:
    """A graph, or independent operators in one file."""

    index: int
    case: Case
    operators: bool


def tasks(
    seed: int, doors: list[str], cores: list[str], graphs_alone: bool, operators_alone: bool = False
) -> Iterator[Task]:
    """Yield the cases of a seed, without end: of twelve, seven are graphs, four are on cores, six are planned alone; or graphs
    alone, or independent operators on cores alone.

    Doors, cores and kinds of operators are drawn, so that all of them meet.
    """
    for index in count():
        own, rng = (seed << _BITS) + index, np.random.default_rng([seed, index])
        door, core = (str(rng.choice(choices)) for choices in (doors, cores or ["host"]))
        is_graph, place = (False, "core") if operators_alone else _TURNS[index % len(_TURNS)]
        target = core if place == "core" else "host"
        planned = place == "planned"
        if graphs_alone or is_graph:
            yield Task(index, replace(Case.drawn(draw(own, door), target), planned=planned), operators=False)
            continue
        form = ANY if rng.random() < 0.5 else str(rng.choice(FORMS[door]))
        size = _FEW if (door, form) == ("pt2", ANY) else _BATCH.get(target, 200)
        model = draw_any_operators(own, size, door) if form == ANY else draw_operators(own, size, door, form)
        yield Task(index, replace(Case.drawn(model, target), operators=size, planned=planned), operators=True)


def outcomes(task: Task, until: float) -> list[dict[str, Any]]:
    """Return what becomes of a task, a record for each of its parts or kinds of parts. Raises `Stopped`."""
    door = task.case.model.door
    if task.operators:
        return [_record(door, case, outcome, case.model.parts) for case, outcome in apart(task.case, until)]
    outcome, model = check(task.case, until), task.case.model
    found = [_record(door, task.case, outcome, 0)]
    if outcome.verdict in FAULTS and isinstance(model, RandomModel):
        with suppress(Stopped):
            steps, reduced = smallest(task.case, until)
            found[0]["command"] += f" --first {steps}"
            found[0]["smallest"] = f"{model.prefix(steps).text()}\n{reduced.verdict}: {reduced.reason}"
    return found


def _record(door: str, case: Case, outcome: Outcome, operators: int) -> dict[str, Any]:
    made: dict[str, Any] = {"door": door, "operators": operators, "target": case.target}
    made |= {"verdict": outcome.verdict, "reason": outcome.reason}
    if outcome.verdict in FAULTS:
        made |= {
            "command": case.command(),
            "options": {k: str(v) for k, v in case.options.items()},
        }
    return made


class Log:
    """What became of the tasks of a seed, one line of JSON each."""

    def __init__(self, path: Path, until: float = math.inf) -> None:
        self.path, self.until = path, until  # of the monotonic clock
        path.parent.mkdir(parents=True, exist_ok=True)
        lines = path.read_text().splitlines() if path.is_file() else []
        self.tasks: dict[int, dict[str, Any]] = {entry["index"]: entry for entry in map(json.loads, lines)}

    def examine(self, task: Task) -> Outcome:
        """Run a task and write its line, unless it is stopped; in the process of the task."""
        started = time.monotonic()
        try:
            found = outcomes(task, self.until)
        except Stopped:
            return Outcome(PASS)
        self.add({"index": task.index, "seconds": round(time.monotonic() - started, 1), "outcomes": found})
        return Outcome(PASS)

    def add(self, entry: Mapping[str, Any]) -> None:
        """Append one line."""
        with self.path.open("a") as out:
            out.write(json.dumps(entry) + "\n")

    def ended(self, task: Task, outcome: Outcome) -> None:
        """Take note of a task whose process has ended; where that wrote nothing, its end is a fault."""
        if outcome.verdict != PASS:
            record = _record(task.case.model.door, task.case, outcome, task.case.model.parts if task.operators else 0)
            self.add({"index": task.index, "seconds": 0, "outcomes": [record]})
        self.tasks = Log(self.path).tasks

    def faults(self, index: int) -> list[dict[str, Any]]:
        """Return the faults of a task; none of one that was stopped."""
        return [r for r in self.tasks.get(index, {"outcomes": []})["outcomes"] if r["verdict"] in FAULTS]

    def records(self) -> list[dict[str, Any]]:
        """Return the outcomes of all tasks."""
        return [record for entry in self.tasks.values() for record in entry["outcomes"]]


def counts(records: list[dict[str, Any]]) -> dict[str, Any]:
    """Return counts of outcomes; a graph counts as one, and so does an operator."""
    verdicts, doors, rules, targets = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
    for record in records:
        units, verdict = max(1, record["operators"]), record["verdict"]
        verdicts["fault" if verdict in FAULTS else verdict] += units
        doors[record["door"]] += units
        targets[record["target"]] += record["operators"]
        if verdict == DISPUTED:
            rules[record["reason"].partition(":")[0]] += units
    graphs = sum(record["operators"] == 0 for record in records)
    return {
        "graphs": graphs,
        "operators": sum(record["operators"] for record in records),
        "doors": dict(doors.most_common()),
        "targets": dict(targets.most_common()),  # of operators
        "right": verdicts[PASS],
        "refused": verdicts[REFUSED],
        "rules": dict(rules.most_common()),
        "faults": verdicts["fault"],
    }


def told(found: Mapping[str, Any], skipped: list[str]) -> str:
    """Return counts as text, the last lines that a run prints."""
    doors = [f"{door} {n}" for door, n in found["doors"].items()] + [f"{s} skipped" for s in skipped]
    rules = "".join(f"; {n} {rule}" for rule, n in found["rules"].items())
    lines = [f"{found['graphs']} graphs, {found['operators']} operators: {', '.join(doors)}"]
    lines += [f"right {found['right']}", f"refused {found['refused']}"]
    return "\n".join([*lines, f"reference defects {sum(found['rules'].values())}{rules}", f"faults {found['faults']}"])


def keep(run: Mapping[str, Any], folder: Path) -> None:
    """Put a run beside those kept before, and write the page."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "differential.json"
    runs = json.loads(path.read_text()) if path.is_file() else []
    runs = [r for r in runs if _identity(r) != _identity(run)] + [dict(run)]
    path.write_text(json.dumps(runs, indent=1) + "\n")
    rows = []
    for r in runs:
        seed = f"{r['seed']}{' (make bench)' if r['graphs_alone'] else ' (--operators)' if r.get('operators_alone') else ''}"
        cells = (seed, r["minutes"], r["graphs"], r["operators"], r["right"], r["refused"], sum(r["rules"].values()))
        rows.append("| " + " | ".join(map(str, (*cells, r["faults"]))) + " |")
    doors, rules, targets = Counter[str](), Counter[str](), Counter[str]()
    for r in runs:
        doors.update(r["doors"])
        rules.update(r["rules"])
        targets.update(r.get("targets", {}))
    whole = {k: sum(r[k] for r in runs) for k in ("graphs", "operators", "right", "refused", "faults")}
    defects, hours = sum(rules.values()), sum(r["minutes"] for r in runs) / 60
    tail = [
        f"| **all, {hours:.1f} hours** | | {' | '.join(str(whole[k]) for k in ('graphs', 'operators', 'right', 'refused'))}"
    ]
    tail[0] += f" | {defects} | {whole['faults']} |"
    tail += ["", f"By door: {', '.join(f'{d} {n}' for d, n in doors.most_common())}.", ""]
    told_apart = ", ".join(f"{t} {n}" for t, n in targets.most_common())
    tail += [f"Operators by target, where a run told them apart: {told_apart}.", ""] if targets else []
    tail += [f"- {n} x {rule}" for rule, n in rules.most_common()]
    (folder / "differential.md").write_text(HEAD + "\n".join([*rows, *tail]).rstrip() + "\n")


def _identity(run: Mapping[str, Any]) -> tuple[Any, ...]:
    return run["seed"], run["graphs_alone"], run.get("operators_alone", False)


def available(cores: list[str]) -> list[str]:
    """Return those cores that there is a compiler for here."""
    return [core for core in cores if which(get_core(core).family.gcc)]


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--graphs", type=int, help="as many graphs and nothing else, whatever time that takes")
    parser.add_argument("--operators", action="store_true", help="independent operators alone, all of them on cores")
    parser.add_argument("--seed", type=int, help="none: a fresh one, or 0 with --graphs")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--cores", nargs="*", default=list(CORES), help="beside the host")
    parser.add_argument("--doors", nargs="*", default=list(_ORACLES), choices=list(_ORACLES))
    parser.add_argument("--output", type=Path, default=RESULTS)
    return parser.parse_args()


def main() -> int:
    """Run tasks until the time is over; print the faults, then counts."""
    args, started = _arguments(), time.monotonic()
    seed = args.seed if args.seed is not None else 0 if args.graphs else secrets.randbits(31)
    over = math.inf if args.graphs is not None else started + 60 * args.minutes
    until = over + 60 * min(args.minutes / 2, _GRACE)
    kind = "-graphs" if args.graphs is not None else "-operators" if args.operators else ""
    log = Log(LOGS / f"{seed}{kind}.jsonl", until)
    skipped = [
        f"{door} ({_ORACLES[door]} is not installed)" for door in args.doors if find_spec(_ORACLES[door]) is None
    ]
    doors = [door for door in args.doors if find_spec(_ORACLES[door]) is not None]
    print(f"seed {seed}, log {log.path}", flush=True)
    examined(Case(draw(2)))  # so that processes find loaded what cases need
    done, all_tasks = set(log.tasks), tasks(seed, doors, available(args.cores), args.graphs is not None, args.operators)

    def due() -> Iterator[Task]:
        for task in all_tasks:
            if time.monotonic() > over or task.index == args.graphs:
                return
            if task.index not in done:
                yield task

    before = sum(entry["seconds"] for entry in log.tasks.values())
    for task, outcome in forked(due(), log.examine, args.jobs, _SECONDS):
        log.ended(task, outcome)
        for record in log.faults(task.index):
            print(json.dumps(record, indent=1), flush=True)
    found = counts(log.records())
    minutes = round((before / max(1, args.jobs) + time.monotonic() - started) / 60, 1)
    asked = {"graphs_alone": args.graphs is not None, "operators_alone": args.operators}
    keep({"seed": seed, **asked, "minutes": minutes, **found}, args.output)
    print(told(found, skipped))
    return int(found["faults"] > 0)


if __name__ == "__main__":
    sys.exit(main())
