"""Processor time and memory of whole commands, beside Vela and minimalloc: `benchmarks/results/speed.md`.

    python benchmarks/speed.py --models DIR [--cases DIR] [--zoo DIR] [--vela PATH] [--minimalloc PATH] [--only TEXT]

DIR of --models holds public `.tflite` files, that of --cases minimalloc's CSV files, that of --zoo what `zoo_convert.py` made, of
which all but NASNetMobile are planned for their memory (MB) alone;
other networks are written by `speed_networks.py`. Every command runs by itself with new cache folders; "again" runs it once more
with the same ones. Vela and minimalloc run on the same files in the same run; without their programs their column stays empty.
Times are user + system seconds of the process and its children. A fixed loop is timed before and after every command; `loops` is
the command's seconds in loops, and `of aim` that beside the seconds aimed at, which were stated for a machine on which the loop
takes 0.40 s: 1.00 is just met.
"""

from __future__ import annotations

import argparse
import compileall
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import speed_networks

DOC = __doc__ or ""
RESULTS = Path(__file__).parent / "results"
CORES = ("cortex-m4", "cortex-m7", "cortex-m55")
LIMIT = 600  # seconds after which a command is ended
CACHES = ("XDG_CACHE_HOME", "TVM_CASCADE_CACHE_DIR")
CAPACITY = 1 << 20  # of minimalloc's public cases, bytes
LOOP = 0.40  # seconds of the loop on the machine that the limits were stated for
PHASES = {  # functions whose share of a plan is told, with all that they call
    "read the file": ("frontend.py", "load"),
    "search for substitutions": ("substitutions.py", "promised_rewrite"),
    "lower integers": ("lower_quantized.py", "lowered"),
    "graph and kernels, all candidates": ("prepare_graph.py", "prepare_graph"),
    "search over segments, all candidates": ("planner.py", "cascade"),
    "multi-row tiles": ("raise_tile_rows.py", "raise_tile_rows"),
    "bytes of code": ("code_size.py", "code_bytes"),
    "estimates and frontier": ("frontier.py", "frontier_report"),
}
PROFILED = """
import cProfile, sys
import tvm_cascade
tvm_cascade.plan  # with what it imports
profile = cProfile.Profile()
profile.runcall(tvm_cascade.plan, sys.argv[1])
profile.dump_stats(sys.argv[2])
"""


@dataclass(frozen=True, slots=True)
class Row:
    """A command of ours, the seconds aimed at, if any were, and a rival's command for the same file."""

    label: str
    arguments: tuple[str, ...]
    limit: float | None
    rival: tuple[str, ...] = ()
    again: float | None = None  # seconds aimed at for a second run

    def cells(self, first: Measured, again: Measured | None, rival: Measured | None, unit: float) -> tuple[str, ...]:
        """The row of the table; `unit` are the seconds of the loop beside it."""
        aim, share = "" if self.limit is None else f"{self.limit:g}", ""
        if first.status is not None and self.limit is not None:
            share = f"{first.seconds / unit / (self.limit / LOOP):.2f}"
        second = "" if again is None or self.again is None else f"{again.seconds / unit / (self.again / LOOP):.2f}"
        return (
            self.label, cell(first), f"{first.seconds / unit:.1f}", aim, share,
            cell(again), "" if self.again is None else f"{self.again:g}", second, f"{first.megabytes:.0f}", cell(rival),
        )  # fmt: skip


@dataclass(slots=True)
class Measured:
    """What a command took; `status` is None where it was ended."""

    status: int | None
    seconds: float
    megabytes: float


@dataclass(slots=True)
class Runner:
    """Runs commands, each in new cache folders unless told to take the last ones."""

    folder: Path
    count: int = 0
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, command: tuple[str, ...], again: bool = False) -> Measured:
        if not again:
            self.count += 1
            cache = self.folder / f"cache{self.count}"
            cache.mkdir()
            self.environment = {**os.environ, **dict.fromkeys(CACHES, str(cache))}
            self.environment.pop("PYTHONDONTWRITEBYTECODE", None)  # users have compiled modules
        with (self.folder / "errors.txt").open("wb") as errors:
            process = subprocess.Popen(
                ["timeout", "-k", "5", str(LIMIT), *command],
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors, env=self.environment, cwd=self.folder,
            )  # fmt: skip
            _, status, usage = os.wait4(process.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        return Measured(None if code in (124, 137) else code, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def loop() -> float:
    """Processor seconds of a fixed loop."""
    began = time.process_time()
    sum(i * i & 7 for i in range(5_000_000))
    return time.process_time() - began


def rows(args: argparse.Namespace, folder: Path) -> Iterator[Row]:
    """The table of commands; those of files that are not there are left out."""
    vela = (
        (args.vela, "--accelerator-config", "ethos-u55-128", "--output-dir", str(folder / "vela")) if args.vela else ()
    )
    yield Row("--help", ("--help",), 0.4)
    limits = {
        "person_detect": 2.5,
        "kws_dscnn_int8": 2.5,
        "resnet8_int8": 2.5,
        "vww_96_int8": 2.5,
        "mobilenetv2_100_224_int8": 4.0,
    }
    files = (
        {name: args.models / f"{name}.tflite" for name in (*limits, "micro_speech_quantized")} if args.models else {}
    )
    for name, path in files.items():
        if name in limits:
            yield Row(f"plan {name}", ("plan", str(path)), limits[name], (*vela, str(path)) if vela else ())
    made = speed_networks.write(folder)
    for name, limit, options in (
        ("softmax_100", 2.5, ()), ("deeplab_513", 20, ()),
        ("chain_200", 30, ()), ("chain_400", 30, ()), ("chain_800", 30, ()),
        ("branches_100", 30, ()), ("branches_200", 30, ()), ("branches_400", 30, ()),
        ("mcunet_80", 20, ("--max-macs", "2.0", "--stream-input", "--stored-io")),
    ):  # fmt: skip
        yield Row(
            " ".join(("plan", name, *options)),
            ("plan", str(made[name]), *options),
            limit,
            (*vela, str(made[name])) if vela else (),
        )
    yield Row("order wired_1000", ("order", str(made["wired_1000"])), 5)
    for letter in "ABCDEF":
        path = args.cases / f"{letter}.{CAPACITY}.csv" if args.cases else None
        if path is not None and path.exists():
            out = str(folder / "offsets.csv")
            rival = (
                (args.minimalloc, f"--capacity={CAPACITY}", f"--input={path}", f"--output={out}")
                if args.minimalloc
                else ()
            )
            yield Row(f"allocate {letter}", ("allocate", str(path), "--capacity", str(CAPACITY), "-o", out), 3, rival)
    for name, path in files.items():
        for core in CORES:
            large = name.startswith("mobilenet")
            command = ("compile", str(path), "--target", core, "-o", str(folder / f"{name}-{core}"))
            if not large or core == CORES[-1]:
                yield Row(f"compile {name} for {core}", command, 25 if large else 8, again=None if large else 4)
    for path in sorted(args.zoo.glob("*.tflite")) if args.zoo else ():
        if path.stem != "nasnet_mobile":
            yield Row(f"plan {path.stem}", ("plan", str(path)), None)
    if args.zoo and (nasnet := args.zoo / "nasnet_mobile.tflite").exists():
        yield Row("plan nasnet_mobile", ("plan", str(nasnet)), 30, (*vela, str(nasnet)) if vela else ())
        yield Row(
            "compile nasnet_mobile for host",
            ("compile", str(nasnet), "--target", "host", "-o", str(folder / "nasnet")),
            60,
        )


def cell(measured: Measured | None) -> str:
    if measured is None:
        return ""
    if measured.status is None:
        return f"not done in {measured.seconds:.0f}"
    return f"{measured.seconds:.2f}" + (f" (status {measured.status})" if measured.status else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=DOC.splitlines()[0])
    for name in ("models", "cases", "zoo"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("vela", "minimalloc", "only"):
        parser.add_argument(f"--{name}", default="")
    args = parser.parse_args()
    ours = (sys.executable, "-m", "tvm_cascade.cli")
    for part in ("tvm_cascade", "passes", "schedules"):  # as those of an installation are
        compileall.compile_dir(Path(__file__).parent.parent / part, quiet=1)
    before = os.getloadavg()[0]
    lines = [
        "# Processor time of whole commands\n",
        DOC.split("\n\n", 2)[2],
        f"Machine: {platform.processor() or platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}; "
        f"{'other programs ran' if before > 0.5 else 'nothing else ran'} on it (load {before:.1f} when this began).\n",
        "| command | seconds | loops | aimed at | of aim | again | aimed at | of aim | MB | rival, seconds |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    units: list[float] = []
    with tempfile.TemporaryDirectory() as name:
        runner, table = Runner(Path(name)), [r for r in rows(args, Path(name)) if args.only in r.label]
        for row in table:
            around = [loop(), loop()]
            first = runner.run((*ours, *row.arguments))
            again = runner.run((*ours, *row.arguments), again=True) if row.again is not None else None
            around += [loop(), loop()]
            rival = runner.run(row.rival) if row.rival else None
            units.append(min(around))
            lines.append(f"| {' | '.join(row.cells(first, again, rival, units[-1]))} |")
            print(lines[-1], flush=True)
        lines.append(f"\nThe loop took {min(units):.2f} to {max(units):.2f} s.")
        profiled = [r for r in table if r.label in ("plan mobilenetv2_100_224_int8", "plan nasnet_mobile")]
        lines += [line for row in profiled for line in profile(row, Path(name))]
    if not args.only:
        (RESULTS / "speed.md").write_text("\n".join(lines) + "\n", encoding="utf-8")


def profile(row: Row, folder: Path) -> list[str]:
    """Where the time of a plan goes, measured by Python's profiler, which slows calls of Python down."""
    path = folder / "profile"
    subprocess.run([sys.executable, "-c", PROFILED, row.arguments[1], str(path)], check=True, capture_output=True)
    stats: dict[tuple[str, int, str], tuple[int, int, float, float, object]] = pstats.Stats(str(path)).stats  # type: ignore[attr-defined]
    whole = max(cumulative for _, _, _, cumulative, _ in stats.values())
    found = [f"\n## What is left of `{row.label}`, in shares of the profiled call without imports\n"]
    for phase, (file, function) in PHASES.items():
        spent = sum(s[3] for (where, _, name), s in stats.items() if where.endswith("/" + file) and name == function)
        found.append(f"- {phase}: {100 * spent / whole:.0f} %")
    return found


if __name__ == "__main__":
    main()
