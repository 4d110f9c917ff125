"""Check one random model again: `python -m tvm_cascade.testing.random_models SEED`; a fault is reduced to its smallest prefix.

With `--operators N` the model holds N independent operators, of which `--parts` takes some.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tvm_cascade.testing.random_models.check import FAULTS, Case, check, smallest
from tvm_cascade.testing.random_models.draw import draw, draw_operators
from tvm_cascade.testing.random_models.model import RandomModel
from tvm_cascade.testing.random_models.operators import ANY, Operators, draw_any_operators
from tvm_cascade.testing.random_models.references import reference


def main() -> int:
    """Print the network, its options and its outcome; return 1 for a fault."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument("--door", choices=("tflite", "onnx", "pt2"))
    parser.add_argument("--form", help="number format of the door")
    parser.add_argument("--opset", type=int, help="of ONNX")
    parser.add_argument("--target", default="host")
    parser.add_argument("--first", type=int, help="check the first so many operators")
    parser.add_argument("--operators", type=int, help="independent ones, in one file")
    parser.add_argument("--parts", type=int, nargs="*", help="outputs, or operators, to check")
    parser.add_argument("--planned", action="store_true", help="planned and run in this process, not compiled")
    parser.add_argument("--plain", action="store_true", help="with the default options of planning")
    parser.add_argument("--save", type=Path, help="write the file here")
    args = parser.parse_args()
    model = _model(args)
    options = {} if args.plain else Case.drawn(model, args.target).options
    if args.parts is not None:
        model = model.subset(args.parts)
    if args.first is not None and isinstance(model, RandomModel):
        model = model.prefix(args.first)
    if args.save is not None:
        args.save.write_bytes(reference(model).file)
    opset = f" of opset {model.opset}" if model.door == "onnx" else ""
    print(f"{model.text()}\n{model.door} {model.form}{opset}, {dict(options)}")
    case = Case(model, args.target, options, planned=args.planned)
    outcome = check(case)
    print(f"{outcome.verdict}: {outcome.reason}")
    if outcome.verdict not in FAULTS:
        return 0
    if isinstance(model, RandomModel) and args.first is None:
        count, outcome = smallest(case)
        print(
            f"smallest: the first {count} operators\n{model.prefix(count).text()}\n{outcome.verdict}: {outcome.reason}"
        )
    return 1


def _model(args: argparse.Namespace) -> RandomModel | Operators:
    if args.operators is None:
        return draw(args.seed, args.door, args.form, opset=args.opset)
    if args.form == ANY:
        return draw_any_operators(args.seed, args.operators, args.door, args.opset)
    return draw_operators(args.seed, args.operators, args.door, args.form, args.opset)


if __name__ == "__main__":
    sys.exit(main())
