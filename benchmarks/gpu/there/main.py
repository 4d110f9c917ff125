"""Everything on a GPU in one command: `run.sh [--dry-run] [--results FILE] [--minutes 8.5] [--again NAME,..]`.

Steps run in processes of their own, one after the other, and results are written to one JSON file after each. A call ends
before it takes longer than `--minutes`; the next call goes on. Exit status: 0 all steps done and right, 1 a step failed,
2 no GPU, 3 steps left: call again. `--dry-run` walks every step without a GPU: programs for the GPU run on a stand-in for
CUDA that counts, the small network is computed on the CPU, and nothing is kept.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from importlib import import_module, metadata
from pathlib import Path
from typing import Any

import emitted_steps
import tvm_steps
from machine import find_gpu
from packed import BATCHED, HERE, MANIFEST, NETWORKS, PROGRAMS
from tvm_steps import Call, Row

_SANITIZERS = ("/usr/local/cuda/bin", "/usr/local/cuda/compute-sanitizer", "/opt/nvidia/compute-sanitizer")
_TORCH = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "tf32": "tf32"}
_PRECISIONS = dict.fromkeys(precision for _, precision in PROGRAMS.values())  # of this pack, in order
_LIMIT_MINUTES = 8.9  # of one step


@dataclass(frozen=True)
class Step:
    """A part of the work; `minutes` is what it takes at most by estimate, and has to be below a call's limit."""

    name: str
    minutes: float
    run: Callable[[Call], list[Row]]


def sanitized(tool: str) -> Callable[[Call], list[Row]]:
    """The step that runs the small network under a tool of compute-sanitizer."""

    def step(call: Call) -> list[Row]:
        command = [sys.executable, "-B", __file__, "--step", "small", "--work", str(call.work)]
        program = shutil.which("compute-sanitizer", path=os.pathsep.join([os.environ.get("PATH", ""), *_SANITIZERS]))
        if call.rehearsal:
            done = _call([*command, "--dry-run"])
            row: Row = {"tool": tool, "found": program, "note": "rehearsed without the tool"}
        elif program is None:
            return [{"tool": tool, "wrong": "compute-sanitizer is not installed"}]
        else:
            done = _call([program, "--tool", tool, "--report-api-errors", "no", "--error-exitcode", "9", *command])
            row = {"tool": tool, "report": [x for x in done.stdout.splitlines() if x.startswith("=========")][-20:]}
        return [row | ({"wrong": f"exit status {done.returncode}: {_last(done)}"} if done.returncode else {})]

    return step


def _call(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def _last(done: subprocess.CompletedProcess[str]) -> str:
    lines = [x for x in (done.stdout + done.stderr).splitlines() if x.strip()]
    return lines[-1][:200] if lines else "nothing said"


def with_torch(name: str, *about: str) -> Callable[[Call], list[Row]]:
    """A step of `torch_steps`. That module is imported where the step runs: PyTorch brings a CUDA runtime of its own."""

    def step(call: Call) -> list[Row]:
        found = getattr(import_module("torch_steps"), name)
        return (found(*about) if about else found)(call)

    return step


def steps() -> list[Step]:
    """All steps in order: first whether results are right, then times."""
    count = len(NETWORKS)
    found = [
        Step("reference", 1 + 0.5 * count, with_torch("reference")),
        Step("correctness", 1 + 0.5 * count, tvm_steps.correctness),
        Step("memcheck", 4, sanitized("memcheck")),
        Step("racecheck", 6, sanitized("racecheck")),
        Step("emitted", 3, emitted_steps.emitted),
        *(Step(s, 0.5 + 0.25 * count, tvm_steps.timed(s)) for s in PROGRAMS),
        Step("turns", 1 + 0.5 * count, tvm_steps.turns),
        *(
            Step("eager" if p == "fp32" else f"eager_{p}", 1 + 0.5 * count, with_torch("eager", _TORCH[p]))
            for p in _PRECISIONS
        ),
        Step("operators", 1 + 0.75 * count, with_torch("operators")),
        Step("kernels", 1 + 0.5 * count, tvm_steps.kernels),
        Step("cudnn", 1 + 0.75 * count, tvm_steps.cudnn),
        Step("thousand", 1 + 0.5 * count, tvm_steps.thousand),
        *(Step(f"batch-{n}", 4, tvm_steps.batched(n)) for n in BATCHED),
        *(Step(f"batch_torch-{n}", 4, with_torch("batched", n)) for n in BATCHED),
    ]
    for precision in (_TORCH[p] for p in _PRECISIONS):
        for mode, name in (("reduce-overhead", "overhead"), ("max-autotune", "compile")):
            found += [
                Step(f"{name}-{n}-{precision}", 8, with_torch("compiled", n, precision, mode))
                for n in (*NETWORKS, *BATCHED)
            ]
    return found


def perform(step: Step, call: Call) -> dict[str, Any]:
    """Run a step in a process of its own; its result."""
    command = [sys.executable, "-B", __file__, "--step", step.name, "--work", str(call.work)]
    start = time.time()
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as log:
        child = subprocess.Popen([*command, *(["--dry-run"] if call.rehearsal else [])], stdout=out, stderr=log)
        try:
            child.wait(_LIMIT_MINUTES * 60)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
        out.seek(0)
        log.seek(0)
        text, told = out.read(), log.read()
    result: dict[str, Any] = {"seconds": round(time.time() - start, 1), "at": _now()}
    try:
        result["rows"] = json.loads(text)
    except ValueError:
        lines = [x for x in told.splitlines() if x.strip()]
        reason = lines[-1][:300] if lines else "nothing said"
        return result | {"failed": f"exit status {child.returncode}: {reason}", "log": lines[-60:]}
    wrong = [row["wrong"] for row in result["rows"] if "wrong" in row]
    return result | ({"failed": "; ".join(wrong[:3])} if wrong else {})


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def about_machine() -> dict[str, Any]:
    """The device, its driver, the date, versions."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,clocks.max.sm", "--format=csv,noheader"]
    gpu = _call(query).stdout.strip() if shutil.which("nvidia-smi") else "unknown"
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        torch = None
    return {"gpu": gpu, "at": _now(), "python": sys.version.split()[0], "torch": torch, "pack": MANIFEST}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry-run", action="store_true", help="walk every step without a GPU")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    parser.add_argument("--minutes", type=float, default=8.5, help="begin no step that may end after this time")
    parser.add_argument("--again", type=lambda s: s.split(","), default=[], help="steps to run once more")
    parser.add_argument("--only", type=lambda s: s.split(","), help="the steps to run, in this order [default: all]")
    parser.add_argument("--step", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help="folder of unpacked networks [default: a temporary one]")
    args = parser.parse_args()
    if args.step:
        run = {"small": tvm_steps.small, **{s.name: s.run for s in steps()}}[args.step]
        rows = run(Call(args.work, args.dry_run))
        print(json.dumps(rows))
        return int(args.step == "small" and any("wrong" in row for row in rows))
    strangers = {*args.again, *(args.only or ())} - {s.name for s in steps()}
    if strangers:
        parser.error(f"no step {', '.join(sorted(strangers))}: --dry-run lists them")
    missing = None if args.dry_run else find_gpu()
    if missing:
        print(f"run.sh: {missing}; run.sh --dry-run rehearses without one", file=sys.stderr)
        return 2
    work = args.work or Path(tempfile.gettempdir()) / f"tvm_cascade_gpu_{MANIFEST['made']}"
    if not args.dry_run:
        work.mkdir(parents=True, exist_ok=True)
        return measure(args, Call(work))
    with tempfile.TemporaryDirectory() as folder:
        return rehearse(Call(Path(folder), True), args.only)


def rehearse(call: Call, only: list[str] | None) -> int:
    """Walk every step, or those named; 1 if one of them failed."""
    failed = 0
    named = {s.name: s for s in steps()}
    for step in (named[n] for n in only or named):
        result = perform(step, call)
        failed += "failed" in result
        told = result.get("failed") or f"{len(result['rows'])} results"
        print(f"{step.name}: {told}, {result['seconds']} s\nstep {step.name} minutes {step.minutes:g}", flush=True)
    return int(failed > 0)


def measure(args: argparse.Namespace, call: Call) -> int:
    """Run the steps that have no result yet, as far as time allows."""
    known = json.loads(args.results.read_text()) if args.results.exists() else {"steps": {}}
    if known.get("pack", MANIFEST) != MANIFEST:
        print(f"run.sh: {args.results} is of another pack; name another file with --results", file=sys.stderr)
        return 1
    known |= about_machine()
    begin = time.time()
    named = {s.name: s for s in steps()}
    todo = [named[n] for n in args.only or named if n not in known["steps"] or n in args.again]
    for k, step in enumerate(todo):
        if k and (time.time() - begin) / 60 + step.minutes > args.minutes:
            print(f"{len(todo) - k} steps left: call run.sh again", flush=True)
            return 3
        known["steps"][step.name] = result = perform(step, call)
        partial = args.results.with_suffix(".partial")
        partial.write_text(json.dumps(known, indent=1) + "\n")
        partial.replace(args.results)
        told = result.get("failed") or "done"
        print(f"{step.name}: {told}, {result['seconds']} s\nstep {step.name} minutes {step.minutes:g}", flush=True)
    failed = [name for name, result in known["steps"].items() if "failed" in result]
    if failed:
        print(f"run.sh: failed: {', '.join(failed)} (--again NAME runs a step once more)", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
