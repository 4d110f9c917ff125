"""Instructions of whole firmware in the emulator, per model, core and plan: `benchmarks/results/cortex_m.md`.

    python benchmarks/cortex_m.py --models DIR [--cores cortex-m4 ...] [--plans row ...] [--only person_detect ...]

Every figure is one inference of the linked image, counted by the board's cycle counter under `-icount`: instructions,
not cycles. Outputs are compared with LiteRT's reference kernels. CMSIS-NN's figures beside them are its best build,
layer by layer (gcc -O2 on M3 and M4, clang -O3 on M55; July 2026).
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tvm_cascade import api

RESULTS = Path(__file__).parent / "results"
MODELS = ("person_detect", "vww_96_int8", "resnet8_int8", "kws_dscnn_int8", "mobilenetv2_035_160_int8")
BOARDS = {"cortex-m3": "mps2-an385", "cortex-m4": "mps2-an386", "cortex-m55": "mps3-an547"}
CMSIS_NN = {  # million instructions on M3, M4, M55
    "person_detect": (28.84, 21.43, 6.21),
    "vww_96_int8": (30.41, 22.60, 6.26),
    "resnet8_int8": (37.46, 28.50, 4.59),
    "kws_dscnn_int8": (10.04, 7.23, 1.73),
}
PLANS: dict[str, dict[str, object]] = {
    "layer by layer": {"layerwise": True},
    "row rings": {"granularity": "row"},
    "smallest arena": {},
}


@dataclass(frozen=True, slots=True)
class Count:
    """One compiled and counted network; sizes in bytes."""

    model: str
    core: str
    plan: str
    backend: str
    instructions: int
    macs: int
    arena: int
    flash: int
    weights: int
    stack: int
    match: bool | None


def count(path: Path, core: str, plan: str) -> Count:
    """Compile, run and check one network."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "p"
        made = api.compile(str(path), target=core, board=BOARDS[core], output=out, **PLANS[plan])  # type: ignore[arg-type]
        report = api.run(out, board=BOARDS[core], check=path).to_dict()
        image = json.loads((out / "metadata.json").read_text(encoding="utf-8"))
    compiled = made.to_dict()
    return Count(
        path.stem,
        core,
        plan,
        str(image["options"]["emit"]),
        int(str(report["instructions"])),
        int(str(compiled["macs"])),
        int(str(compiled["arena_bytes"])),
        int(str(compiled["flash_bytes"])),
        sum(o["weight_bytes"] for o in image["operators"]),
        int(str(report["stack_bytes"])),
        report["match"] if isinstance(report["match"], bool) else None,
    )


def reference(model: str, core: str) -> str:
    """CMSIS-NN's count and our share of it."""
    known = CMSIS_NN.get(model)
    return "" if known is None else f"{known[list(BOARDS).index(core)]:.2f}"


def table(counts: list[Count]) -> str:
    """The counts as Markdown."""
    plain = {(c.model, c.core): c.instructions for c in counts if c.plan == "layer by layer"}
    columns = ("model", "core", "plan", "back end", "M instructions", "per MAC", "CMSIS-NN", "ratio")
    columns += ("over layer by layer", "arena", "flash", "weights", "stack", "exact")
    lines = [
        "# Instructions per inference on Cortex-M",
        "",
        "Whole firmware, counted in the emulator: instructions, not cycles. Written by `benchmarks/cortex_m.py`.",
        "CMSIS-NN: its best build, layer by layer, million instructions. Weights are constants of the model,",
        "flash is the whole image; both in bytes.",
        "",
        f"| {' | '.join(columns)} |",
        f"|{' --- |' * len(columns)}",
    ]
    for c in counts:
        rival = reference(c.model, c.core)
        ratio = f"{c.instructions / 1e6 / float(rival):.2f}" if rival else ""
        base = plain.get((c.model, c.core))
        over = f"{c.instructions / base:.3f}" if base else ""
        exact = {True: "yes", False: "NO", None: "not checked"}[c.match]
        millions, each = c.instructions / 1e6, c.instructions / c.macs
        fields = (c.model, c.core, c.plan, c.backend, f"{millions:.3f}", f"{each:.3f}")
        fields += (rival, ratio, over, str(c.arena), str(c.flash), str(c.weights), str(c.stack), exact)
        lines.append(f"| {' | '.join(fields)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=Path, default=Path(os.environ.get("TVM_CASCADE_TEST_DATA", ".")) / "models")
    parser.add_argument("--only", nargs="*", default=MODELS)
    parser.add_argument("--cores", nargs="*", default=list(BOARDS), choices=list(BOARDS))
    parser.add_argument("--plans", nargs="*", default=list(PLANS), choices=list(PLANS))
    parser.add_argument("--out", type=Path, default=RESULTS / "cortex_m.md")
    options = parser.parse_args()
    counts: list[Count] = []
    for model in options.only:
        path = options.models / f"{model}.tflite"
        if not path.exists():
            print(f"{path} is not there: left out")
            continue
        for core in options.cores:
            for plan in options.plans:
                counts.append(count(path, core, plan))
                print(json.dumps(asdict(counts[-1])), flush=True)
                options.out.parent.mkdir(parents=True, exist_ok=True)
                options.out.write_text(table(counts), encoding="utf-8")


if __name__ == "__main__":
    main()
