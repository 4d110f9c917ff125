"""Measuring a CPU: figures of our own kernels, a process of its own, refusals; and what doctor and stages tell of them."""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")

import json
import sys
from dataclasses import asdict, replace

import pytest
from click.testing import CliRunner

from tvm_cascade import api
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cost.processor import Processor, keep, kept, this_model
from tvm_cascade.errors import ToolError
from tvm_cascade.measured import measure_processor
from tvm_cascade.measured.measure_processor import measure, measured_here
from tvm_cascade.staging.program.cpu import threads
from tvm_cascade.substitution.export_onnx import export_onnx
from tvm_cascade.testing.builder import Net

HERE = Processor(
    model=this_model(),
    architecture="skylake",
    threads=4,
    vector_bits=256,
    thread_macs_per_s=50e9,
    macs_per_s=150e9,
    split=0.9,
    thread_bytes_per_s=10e9,
    bytes_per_s=30e9,
    cache_bytes=8 << 20,
    thread_cache_bytes_per_s=20e9,
    cache_bytes_per_s=60e9,
    launch_us=0.5,
    sync_us=3.0,
    measured="2026-01-31",
)


def network(path):
    from tvm_cascade.passes.substitution_read import read_function
    from tvm_cascade.passes.substitution_write import fold

    net = Net("float32", "NCHW", seed=1)
    x = net.input((1, 8, 10, 10), "x")
    graph = read_function(net.finish(net.concat([net.conv(x, 16, 1), net.conv(x, 16, 3, padding=1)]))["main"])
    export_onnx(graph.dag, fold(graph.dag, graph.constants), path)
    return path


def test_every_figure_is_measured(monkeypatch):
    monkeypatch.setattr(measure_processor, "_SECONDS", 0.001)
    monkeypatch.setattr(measure_processor, "_MIB", (1, 2))
    told: list[str] = []
    made = measured_here(told.append)
    assert made.model == this_model() and made.threads == threads() and made.vector_bits in (128, 256, 512)
    assert min(made.thread_macs_per_s, made.thread_bytes_per_s, made.launch_us) > 0
    assert [line.split()[0] for line in told] == ["arithmetic", "arithmetic", "kernels", "traffic", "traffic"][
        1 if threads() == 1 else 0 :
    ]


def started_as(monkeypatch, tmp_path, body):
    """Let a script stand in for the process that measures."""
    script = tmp_path / "python"
    script.write_text(f"#!{sys.executable}\nimport os, sys\n{body}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_the_process_measures_with_all_cores(monkeypatch, tmp_path):
    line = json.dumps(asdict(HERE))
    started_as(monkeypatch, tmp_path, f"print('threads', os.environ['TVM_NUM_THREADS'])\nprint('''{line}''')")
    monkeypatch.setattr(measure_processor, "cores", lambda: 4)
    told: list[str] = []
    assert measure(told.append) == HERE == kept()
    assert told[-1] == "threads 4"


@pytest.mark.parametrize(
    "body, reason",
    [
        ("sys.exit('no memory')", "the processor could not be measured: no memory"),
        ("print('arithmetic')", "the processor could not be measured: it ended without a result"),
        (
            f"print('''{json.dumps(asdict(replace(HERE, sync_us=2e3)))}''')",
            "a fork and join took 2000 us: other processes",
        ),
    ],
)
def test_failures_keep_nothing(monkeypatch, tmp_path, body, reason):
    started_as(monkeypatch, tmp_path, body)
    with pytest.raises(ToolError, match=reason):
        measure()
    assert kept() is None


def test_doctor_tells_what_is_kept():
    assert api.doctor().processor is None
    keep(HERE)
    assert api.doctor().processor == HERE
    done = CliRunner().invoke(main, ["doctor"])
    assert f"cpu     {HERE.model} (skylake), 4 threads, vectors of 256 bits, measured 2026-01-31" in done.stdout
    assert json.loads(CliRunner().invoke(main, ["doctor", "--json"]).stdout)["processor"] == asdict(HERE)


def test_stages_price_by_what_is_kept(tmp_path):
    path = network(tmp_path / "net.onnx")
    before = api.stages(path, target="llvm").to_dict()
    assert before["description"] == "cpu, built-in"
    keep(HERE)
    after, text = api.stages(path, target="llvm")
    assert after["description"] == "cpu:skylake:4, measured 2026-01-31"
    assert after["cost_model"] == "analytic:cpu:skylake:4" and "(cpu:skylake:4, measured 2026-01-31)" in text
    assert after["sequential_ms"] != before["sequential_ms"]
    assert api.stages(path, target="llvm", threads=2).to_dict()["description"].startswith("cpu:skylake:2, measured")
    assert api.stages(path, target="llvm", device="cpu").to_dict()["sequential_ms"] == before["sequential_ms"]
    assert api.stages(path, target="cuda").to_dict()["description"] == "gpu, built-in"


def test_a_folder_is_priced_with_the_threads_that_run_it(tmp_path):
    path = network(tmp_path / "net.onnx")
    made = api.stages(path, target="llvm", emit=tmp_path / "a").to_dict()
    assert made["description"].startswith("cpu" if threads() == 4 else f"cpu{threads()},")
    assert json.loads((tmp_path / "a" / "metadata.json").read_text())["threads"] == threads()
    keep(HERE)
    api.stages(path, target="llvm", emit=tmp_path / "b")
    assert json.loads((tmp_path / "b" / "metadata.json").read_text())["threads"] == 4


def test_the_pipeline_prices_by_what_is_kept():
    import tvm

    from tvm_cascade.relax_pipeline import _priced_device
    from tvm_cascade.staging.kernels.processors import host_target

    other = tvm.target.Target({"kind": "llvm", "mcpu": "generic"})
    assert _priced_device(None, "llvm", host_target()).source == "built-in"
    keep(HERE)
    assert _priced_device(None, "llvm", host_target()).name == f"cpu:skylake:{threads()}"
    assert _priced_device(None, "llvm", other).source == "built-in"
    assert _priced_device("cpu2", "llvm", host_target()).source == "built-in"
