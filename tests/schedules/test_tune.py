"""The choice among variants: the database, the budget against brute force, the trees, and counts in the emulator."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tvm_cascade import api
from tvm_cascade.boards.board import load_board
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cores import get_core, kernel_target
from tvm_cascade.errors import CascadeError, LoadError
from tvm_cascade.frontend import load
from tvm_cascade.passes.choose_variants import candidates_of, choose_variants, shapes_of
from tvm_cascade.passes.extract_graph import Extracted, extract_graph
from tvm_cascade.passes.lower_quantized import LowerQuantized
from tvm_cascade.pipeline import prepare
from tvm_cascade.runs.count import counter_of, require_counter
from tvm_cascade.schedules.rules.select import GENERIC
from tvm_cascade.schedules.tuning.counting import Count, Task
from tvm_cascade.schedules.tuning.kernel_cost import kernel_cost
from tvm_cascade.schedules.tuning.tune import Database, choices_for, choose, code_of, shipped, tune
from tvm_cascade.schedules.tuning.tune_model import LEAST, CountModel, shape_features
from tvm_cascade.testing.builder import Net

MODEL = Path(api.__file__).parent / "testing" / "data" / "shapes.tflite"
CORE = kernel_target("cortex-m4", "c")


@pytest.fixture(scope="module")
def extracted() -> Extracted:
    return extract_graph(LowerQuantized()(load(str(MODEL))))


def analytic_counter(tasks: list[Task]) -> list[Count]:
    """Counts as the analytic model has them: no emulator."""
    costs = [kernel_cost(t.kernel.func) for t in tasks]
    return [Count(round(c.instructions * t.calls), round(c.bytes)) for c, t in zip(costs, tasks, strict=True)]


def test_counts_survive_a_file(tmp_path: Path) -> None:
    made = Database()
    made.add(CORE, "conv2d a", "x 1", Count(10, 20, 11))
    made.add(kernel_target("cortex-m55", "obj"), "conv2d a", "y", Count(1, 2, 3))
    made.save(tmp_path / "d.json")
    read = Database.load(tmp_path / "d.json")
    assert read.options(CORE, "conv2d a") == {"x 1": Count(10, 20, 11)}
    read.save(tmp_path / "e.json")
    assert (tmp_path / "d.json").read_bytes() == (tmp_path / "e.json").read_bytes()
    assert not read.difference(made).shapes(CORE)
    (tmp_path / "bad.json").write_text('{"counts": {"a": {"b": {"c": [1]}}}}')
    with pytest.raises(LoadError, match="no database of counts"):
        Database.load(tmp_path / "bad.json")
    with pytest.raises(LoadError):
        Database.load(tmp_path / "absent.json")


@pytest.mark.parametrize("seed", range(20))
def test_choice_against_brute_force(seed: int) -> None:
    """`speed` is optimal; no choice of fewer bytes beats the others, and `balanced` meets a budget that can be met."""
    rng = np.random.default_rng(seed)
    known = {
        f"s{i}": {f"v{j}": Count(int(rng.integers(1_000, 90_000)), int(rng.integers(100, 3000))) for j in range(4)}
        for i in range(4)
    }
    uses = {s: int(rng.integers(1, 4)) for s in known}

    def instructions(chosen: dict[str, str]) -> int:
        return sum(known[s][v].instructions * uses[s] for s, v in chosen.items())

    every = [dict(zip(known, c, strict=True)) for c in product(*known.values())]
    assert instructions(choose(known, uses, "speed", 0)) == min(map(instructions, every))
    smallest = min(code_of(known, c) for c in every)
    small = choose(known, uses, "size", 0)
    assert code_of(known, small) <= code_of(known, choose(known, uses, "balanced", 1 << 20))
    assert instructions(small) == min(instructions(c) for c in every if code_of(known, c) <= code_of(known, small))
    for budget in (smallest, smallest + 1500, 12_000):
        made = choose(known, uses, "balanced", budget)
        assert code_of(known, made) <= budget
        cheaper = [c for c in every if code_of(known, c) <= code_of(known, made)]
        assert instructions(made) == min(map(instructions, cheaper))


def test_tuning_counts_what_is_new_and_chooses_by_it(extracted: Extracted) -> None:
    database = Database()
    core = choose_variants(extracted, CORE, database, analytic_counter)
    shapes = shapes_of(extracted, CORE)
    assert {s for s, _ in core.choices} == {s.key for s in shapes}
    for shape, variant in core.choices:
        assert variant in database.options(CORE, shape) and GENERIC in database.options(CORE, shape)
    asked: list[int] = []

    def silent(tasks: list[Task]) -> list[Count]:
        asked.append(len(tasks))
        return analytic_counter(tasks)

    assert choose_variants(extracted, CORE, database, silent) == core and not asked
    assert choices_for(shapes, CORE, Database(), 9) == ()
    assert choose_variants(extracted, kernel_target("host"), database).choices == ()


def test_choices_reach_the_kernels(extracted: Extracted) -> None:
    core = kernel_target("cortex-m4", "c", "size")
    database = tune(shapes_of(extracted, core), core, Database(), analytic_counter)
    small = prepare(load(str(MODEL)), core, database)
    usual = prepare(load(str(MODEL)), core, Database())
    rules = [(a.rule, b.rule) for a, b in zip(small.kernels, usual.kernels, strict=True) if a and b]
    assert any(a != b for a, b in rules)
    wanted = dict(small.core.choices)
    assert {a for a, _ in rules if a != GENERIC} <= {*wanted.values(), *(b for _, b in rules)}


def test_trees_learn_what_the_analytic_model_misses() -> None:
    """Counts that are the analytic ones times a factor of the form: trees rank by them, too few counts do not."""
    database, rng = Database(), np.random.default_rng(0)
    for _ in range(LEAST):
        width, channels = int(rng.integers(4, 40)), int(rng.integers(4, 40))
        key = f"conv2d int8[1,{width},{width},{channels}] int8[1,{width},{width},8] w[1,1,{channels},8] s1,1 p0,0,0,0"
        base = width * width * channels * 8
        database.add(CORE, key, "m.conv 2x2 u4 s4", Count(2 * base, 300, base))
        database.add(CORE, key, "m.conv 4x2 u4 s4", Count(base, 300, base))
    counted = dict(database.shapes(CORE))
    costs = [kernel_cost_of(9000), kernel_cost_of(9500)]
    key = "conv2d int8[1,9,9,9] int8[1,9,9,8] w[1,1,9,8] s1,1 p0,0,0,0"
    names = ["m.conv 2x2 u4 s4", "m.conv 4x2 u4 s4"]
    model = CountModel(counted)
    assert model.trees is not None
    two, four = model.predict(key, names, costs)
    assert four < two
    few = CountModel(dict(list(counted.items())[:3]))
    assert few.trees is None and few.predict(key, names, costs) == [9000, 9500]
    assert shape_features(key).macs == 9 * 9 * 9 * 8


def kernel_cost_of(instructions: int):
    from tvm_cascade.schedules.tuning.kernel_cost import KernelCost

    return KernelCost(float(instructions), 300.0)


def test_only_boards_that_count_can_tune(tmp_path: Path) -> None:
    with pytest.raises(CascadeError, match="counts no instructions"):
        require_counter(None)
    arguments = ["compile", str(MODEL), "--target", "host", "--tune", "-o", str(tmp_path / "p")]
    result = CliRunner().invoke(main, arguments)
    assert result.exit_code == 2 and not (tmp_path / "p").exists()
    result = CliRunner().invoke(main, ["plan", str(MODEL), "--database", str(tmp_path / "none.json")])
    assert result.exit_code == 2


@pytest.mark.emulator
@pytest.mark.parametrize("target,backend", [("cortex-m4", "c"), ("cortex-m55", "obj")])
def test_counts_in_the_emulator(target: str, backend: str, extracted: Extracted, emulator: None) -> None:
    """The same twice, near the analytic model, and the generic kernel slower than the rule's."""
    core, made_for = kernel_target(target, backend), get_core(target)
    shape = next(s for s in shapes_of(extracted, core) if s.key.startswith("conv2d"))
    tasks = [c.task for c in shape.candidates()]
    count = counter_of(made_for, load_board(made_for.default_board), backend)
    first = count(tasks)
    assert first == count(tasks)
    assert all(c.bytes > 50 for c in first) and first[-1].instructions > 2 * first[0].instructions
    for one, task in zip(first, tasks, strict=True):
        assert 1 / 4 < one.instructions / (kernel_cost(task.kernel.func).instructions * task.calls) < 4


@pytest.mark.emulator
@pytest.mark.parametrize(("target", "backend"), [("riscv32", "c"), ("cortex-m3", "obj")])
def test_no_variant_of_a_convolution_beats_the_usual_one(target: str, backend: str, emulator: None) -> None:
    """Where registers are fewest: GCC on RISC-V, LLVM on Cortex-M3."""
    net = Net("int8", seed=2)
    mod = net.finish(net.conv(net.input((1, 5, 6, 12)), 16, 3, activation="relu"))
    core, made_for = get_core(target), kernel_target(target, backend)
    tasks = [c.task for c in candidates_of(prepare(mod, made_for).extracted, 0, made_for)]
    counts = [c.instructions for c in counter_of(core, load_board(core.default_board), backend)(tasks)]
    assert len(counts) > 6 and counts[0] == min(counts)


def test_shipped_counts_serve_public_models(test_data: Path) -> None:
    """Every shape that a rule may serve, on the cores that the table of the benchmarks has."""
    for target, backend in (("cortex-m3", "c"), ("cortex-m4", "c"), ("cortex-m55", "obj")):
        core = kernel_target(target, backend)
        made = extract_graph(LowerQuantized()(load(str(test_data / "models" / "kws_dscnn_int8.tflite"))))
        assert all(shipped().options(core, s.key) for s in shapes_of(made, core))
