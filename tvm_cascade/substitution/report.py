"""Reports of a substitution search, as a JSON object with stable keys and as text: costs, Table 2's columns, steps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from tvm_cascade.schema.searches import Figures, RulesRead, Substituted, Trial
from tvm_cascade.substitution.costs import TVM, Engine, figures, peak_bytes
from tvm_cascade.substitution.dag import Dag
from tvm_cascade.substitution.metaflow import SearchResult, Step

LISTED = 8  # steps on the first screen of `optimize`


def columns(dag: Dag, engine: Engine = TVM) -> Figures:
    """Return MetaFlow's Table 2 (SysML 2019) without the time: operators, FLOPs, bytes moved, kernels, peak
    activations.
    """
    each = [figures(node, engine) for node in dag.nodes]
    return {
        "operators": len(dag.nodes),
        "flops": sum(f.flops for f in each),
        "traffic_bytes": sum(f.traffic for f in each),
        "launches": sum(f.launches for f in each),
        "peak_bytes": peak_bytes(dag),
    }


def optimize_report(before: Dag, result: SearchResult, unit: str = "ms", engine: Engine = TVM) -> Substituted:
    """Return the JSON object for `optimize`.

    `cost_before`, `cost_after` in `unit`, `steps` (list of {rule, operators, cost}), `graphs_explored`, `seconds`; also
    `complete` (no budget cut the search), `bound` (null: none is known), `before` and `after` with Table 2's columns,
    and `hash_before` and `hash_after`, the canonical structural hashes.
    """
    return {
        "cost_before": result.cost_before,
        "cost_after": result.cost_after,
        "cost_unit": unit,
        "steps": [{"rule": s.rule, "operators": list(s.operators), "cost": s.cost} for s in result.steps],
        "graphs_explored": result.graphs,
        "seconds": round(result.seconds, 3),
        "complete": result.complete,
        "bound": None,
        "before": columns(before, engine),
        "after": columns(result.dag, engine),
        "hash_before": before.digest(),
        "hash_after": result.dag.digest(),
    }


def rules_report(verified: Sequence[str], refused: Mapping[str, str], report: Substituted) -> RulesRead:
    """Return the fate of a file's rules: verified, refused with reasons, and used by the search."""
    taken = {step["rule"] for step in report["steps"]}
    return {"verified": len(verified), "refused": dict(refused), "taken": [name for name in verified if name in taken]}


def format_report(report: Substituted, limit: int | None = LISTED) -> str:
    """Format the report; list at most `limit` steps from the winning sequence, None: all."""
    before, after = report["before"], report["after"]
    unit = report["cost_unit"]
    lines = [_answer(report), f"{'':16}{'before':>14}{'after':>14}"]
    lines.append(f"{'cost (' + unit + ')':16}{report['cost_before']:14.4g}{report['cost_after']:14.4g}")
    lines += [f"{name:16}{before[name]:14,}{after[name]:14,}" for name in before]
    steps = report["steps"]
    lines.append(f"{len(steps)} steps, {report['graphs_explored']} graphs, {report['seconds']:.2f} s")
    lines += format_steps([Step(s["rule"], tuple(s["operators"]), s["cost"]) for s in steps[:limit]])
    if limit is not None and len(steps) > limit:
        rest = Counter(s["rule"] for s in steps[limit:])
        lines.append("then " + ", ".join(f"{rule} x{n}" for rule, n in rest.most_common()) + "; all: --details")
    if "rules" in report:
        lines += _read(report["rules"])
    if "measured" in report:
        lines += _measured(report["measured"])
    if not report["complete"]:
        lines.append("the budget ended the search: a larger one may find more; no bound is known")
    return "\n".join(lines)


def _answer(report: Substituted) -> str:
    """Return the line with the search's gain."""
    before, after, unit = report["cost_before"], report["cost_after"], report["cost_unit"]
    if after >= before:
        return f"no cheaper graph was found: {before:.4g} {unit}"
    less, steps = 100 * (1 - after / before), len(report["steps"])
    return f"{less:.1f} % cheaper: {after:.4g} {unit} for {before:.4g}, by {steps} substitutions"


def _read(data: RulesRead) -> list[str]:
    """Format the lines about a file's rules."""
    why = Counter(data["refused"].values())
    every = len(data["refused"]) + data["verified"]
    lines = [f"rules of the file: {data['verified']} of {every} hold on random tensors and were searched"]
    lines += [f"not used: {n} ({reason})" for reason, n in why.most_common()]
    return [*lines, "taken: " + (", ".join(data["taken"]) or "none")]


def _measured(data: Trial) -> list[str]:
    """Format the lines about measurements under `--cost measured` and `--cost learned`."""
    speed = data["speedup"]
    each = [f"{name} {ms:.3f} ms ({speed[name]:.2f}x)" for name, ms in data["milliseconds"].items()]
    lines = [
        "run in turn, least: " + ", ".join(each),
        f"kept: {data['kept']}; {data['measurements']} kernels measured",
    ]
    return lines + [f"not measured: {kind} ({why})" for kind, why in data["not_measured"].items()]


def format_steps(steps: Sequence[Step]) -> list[str]:
    """Format a single line per step: its rule, the cost after it, the matched operator kinds."""
    return [f"{i + 1:4} {s.rule:22} {s.cost:10.4f}  {' '.join(s.operators)}" for i, s in enumerate(steps)]
