"""Measuring on a farm: TVM's tracker and servers as real processes of this machine, one of which dies or hangs."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise

import pytest
from tvm import te

from tvm_cascade import api
from tvm_cascade.cost import AnalyticCost, find_device
from tvm_cascade.cost.measured import MeasuredCost
from tvm_cascade.cost.records import CONCURRENT, RecordStore, stage_key
from tvm_cascade.errors import ToolError, UsageError
from tvm_cascade.measured.choose_module import fastest_on, staged
from tvm_cascade.measured.measure import CpuRunner
from tvm_cascade.measured.measure_farm import QUICK, FarmRunner, fill_for_search
from tvm_cascade.measured.runners import runner_on
from tvm_cascade.measured.search import search_measured, stages
from tvm_cascade.measured.tune_stages import tune_stages
from tvm_cascade.parallel import Options, schedule
from tvm_cascade.parallel.units import unit_graph
from tvm_cascade.request import StagesRequest
from tvm_cascade.runtime.bench import FailedRunError, LocalBench, Program, kernel_program
from tvm_cascade.runtime.farm import Farm, Tracker
from tvm_cascade.runtime.farm_bench import FarmBench
from tvm_cascade.schedules.tuning.metaschedule import Search
from tvm_cascade.staging.kernels.records import KernelRecords
from tvm_cascade.staging.program.graph import stage_graph
from tvm_cascade.testing.builder import Net
from tvm_cascade.testing.zoo.rnn import rnntc

needs_tracker = pytest.mark.skipif(
    importlib.util.find_spec("tornado") is None,
    reason="tornado, which TVM's tracker needs, is not installed: pip install 'tvm-cascade[farm]'",
)
CPU = AnalyticCost(find_device("cpu"))
OPTIONS = Options(variant="parallel", r=1, s=2)


def _network():
    """A convolution, three branches, their sum: stages of one and of two groups."""
    net = Net("float32", "NCHW")
    x = net.conv(net.input((1, 4, 8, 8)), 4, 3, activation="relu")
    branches = [net.conv(x, 4, k, activation="relu") for k in (1, 3, 5)]
    return net.finish(net.add(net.add(branches[0], branches[1]), branches[2]))


def _ports(count: int) -> list[int]:
    held = [socket.socket() for _ in range(count)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in held]
    for s in held:
        s.close()
    return ports


class Servers:
    """A tracker and servers of key `cpu`; every one is the leader of a process group of its own."""

    def __init__(self, log) -> None:
        self.log, self.processes = log, []
        (self.port,) = _ports(1)
        self._start("rpc_tracker", "--host", "127.0.0.1", "--port", self.port, "--port-end", self.port + 1)

    def add(self, **environment: str) -> subprocess.Popen:
        (port,) = _ports(1)
        where = ["--host", "127.0.0.1", "--port", port, "--port-end", port + 1, "--key", "cpu"]
        return self._start("rpc_server", *where, "--tracker", f"127.0.0.1:{self.port}", **environment)

    def _start(self, module: str, *options: object, **environment: str) -> subprocess.Popen:
        command = [sys.executable, "-m", f"tvm.exec.{module}", *map(str, options)]
        env = {**os.environ, "TVM_NUM_THREADS": "1", **environment}
        made = subprocess.Popen(command, stdout=self.log, stderr=self.log, env=env, start_new_session=True)
        self.processes.append(made)
        return made

    def tracker(self, parallel: int = 1, key: str = "cpu") -> Tracker:
        return Tracker("127.0.0.1", self.port, key, parallel)

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def queue(self) -> dict:
        return self.tracker()._summary()["queue_info"].get("cpu", {"free": 0, "pending": 0})

    def wait(self, count: int) -> None:
        """Until so many servers are known and free."""
        end = time.monotonic() + 90
        while time.monotonic() < end:
            try:
                if self.tracker()._summary()["queue_info"].get("cpu", {"free": 0})["free"] == count:
                    return
            except UsageError:
                pass
            time.sleep(0.1)
        raise AssertionError("tracker and servers do not find each other")

    def end(self) -> None:
        for process in self.processes:
            kill(process)


def kill(process: subprocess.Popen) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait(10)


@pytest.fixture(scope="module")
def standing(tmp_path_factory):
    """Two servers that no test ends."""
    with open(tmp_path_factory.mktemp("farm") / "servers.log", "w") as log:
        farm = Servers(log)
        farm.add()
        farm.add()
        farm.wait(2)
        yield farm
        farm.end()


@pytest.fixture
def servers(tmp_path):
    with open(tmp_path / "servers.log", "w") as log:
        farm = Servers(log)
        yield farm
        farm.end()


def _model(farm: Farm, database):
    net = stage_graph(_network())
    bench = FarmBench(farm)
    runner = FarmRunner(CpuRunner(net, unit_graph(net.graph, "fused"), bench=bench), bench)
    return net, MeasuredCost(runner, RecordStore(database, runner.device), QUICK)


@needs_tracker
def test_a_server_that_dies_costs_no_record_and_doubles_none(servers, tmp_path):
    victim, _ = servers.add(), servers.add()
    servers.wait(2)
    with Farm(servers.tracker(parallel=2), seconds=20.0) as farm:
        net, model = _model(farm, tmp_path / "records")
        written = model.store.add

        def add(*args):
            if len(model.store) == 2:
                kill(victim)
            return written(*args)

        model.store.add = add
        fill_for_search(net, model, CPU, OPTIONS)
        found = search_measured(net, model, OPTIONS).schedule
    assert len(model.store) >= 8
    assert sum(len(group) for stage in found.stages for group in stage.groups) == len(net.graph.ops)
    assert all(len(record.samples) % QUICK.first == 0 for record in model.store)  # whole measurements, none twice
    servers.wait(1)
    assert servers.queue()["pending"] == 0  # nothing of the farm is left in the tracker

    again = RecordStore(tmp_path / "records", model.runner.device)
    assert {r.key: r.samples for r in again} == {r.key: r.samples for r in model.store}
    with Farm(servers.tracker()) as farm:
        resumed = _model(farm, tmp_path / "records")[1]
        fill_for_search(net, resumed, CPU, OPTIONS)
        assert resumed.measurements == 0
        assert schedule(net.graph, resumed, OPTIONS).schedule.cost_ms == found.cost_ms


@needs_tracker
def test_a_server_that_hangs_is_left_and_the_job_given_to_another(servers):
    frozen = servers.add()
    servers.wait(1)
    with Farm(servers.tracker(), seconds=3.0) as farm:
        net, model = _model(farm, None)
        servers.wait(1)  # free again, and in the tracker's list
        os.killpg(frozen.pid, signal.SIGSTOP)
        servers.add()  # its processor and threads are the same: it stands in
        op = next(f for unit in unit_graph(net.graph, "fused").features for f in unit)
        assert model.op_ms(op) > 0


@needs_tracker
def test_servers_of_another_key_are_named_and_those_of_another_kind_not_mixed_in(servers):
    servers.add()
    servers.wait(1)
    with pytest.raises(UsageError, match=r"no server of key board; it has cpu: start one with python -m"):
        Farm(servers.tracker(key="board"))
    with Farm(servers.tracker(), seconds=3.0) as farm:
        net, model = _model(farm, None)
        farm.about["threads"] += 1  # as if the first server had had another thread
        op = next(f for unit in unit_graph(net.graph, "fused").features for f in unit)
        with pytest.raises(ToolError, match=r"no server of key cpu was free|is another machine"):
            model.op_ms(op)


@needs_tracker
def test_programs_run_in_turn_and_one_that_does_not_run_is_told(standing):
    mod = _network()
    with Farm(standing.tracker(parallel=2), seconds=20.0) as farm:
        bench = FarmBench(farm)
        x = mod["main"].params[0].ty
        types = [(tuple(int(d) for d in x.shape.values), str(x.dtype))]
        program = Program(staged(mod, bench=bench), types)
        columns = bench.in_turn([program, program, program], rounds=4, repeats=2)
        assert [len(column) for column in columns] == [8, 8, 8] and min(map(min, columns)) > 0
        choice = fastest_on(bench, [mod, mod], runs=3)
        assert len(choice.ratios) == 2 and min(choice.milliseconds) > 0

        func = te.create_prim_func(_doubled((4,)))
        able, wrong = kernel_program(func, bench), replace(kernel_program(func, bench), types=[((5,), "float32")] * 2)
        found = bench.times([bench.timer(wrong), bench.timer(able)], 3)
        assert isinstance(found[0], str) and "measuring on the farm failed" in found[0]
        assert not isinstance(found[1], str) and len(found[1]) == 3  # the servers still stand
        with pytest.raises(FailedRunError):
            bench.timer(wrong)(1)


def _doubled(shape):
    x = te.placeholder(shape, "float32", name="x")
    return [x, te.compute(shape, lambda i: x[i] + x[i], name="y")]


@needs_tracker
def test_stages_for_a_gpu_are_measured_as_programs(servers, tmp_path):
    """The server's CPU stands in for its GPU: streams do nothing, kernels compute."""
    # Python runs it as every process of the server begins
    code = "from tvm_cascade.testing.graph_builtins import register_graph_builtins as register\nregister()\n"
    (tmp_path / "sitecustomize.py").write_text(code)
    servers.add(PYTHONPATH=os.pathsep.join([str(tmp_path), *(p for p in sys.path if p)]))
    servers.wait(1)
    with Farm(servers.tracker()) as farm:
        bench = FarmBench(farm)
        bench.target = "cuda"
        net = stage_graph(_network())
        units = unit_graph(net.graph, "fused")
        runner = FarmRunner(runner_on(bench, net, units), bench)
        model = MeasuredCost(runner, RecordStore(None, runner.device), QUICK)
        ops = [kernels[0] for kernels in units.features if kernels[0].kind == "conv2d"]
        found = [(CONCURRENT, [[a], [b]]) for a, b in pairwise(ops)]
        model.fill(found)
        assert model.measurements == len({stage_key(*stage) for stage in found}) and all(
            len(r.samples) == QUICK.first for r in model.store
        )


@needs_tracker
def test_a_farm_without_gpus_says_so(standing):
    with pytest.raises(ToolError, match=r"no server of the farm can be used: a server has no GPU"):
        stages(_network(), StagesRequest("cuda", cost="measured", tracker=standing.address, key="cpu"))


@needs_tracker
def test_optimize_measures_on_a_farm(standing, tmp_path):
    mod, database = rnntc(steps=2, hidden=16, classes=4), tmp_path / "kernels.db"
    done, text = api.optimize(
        mod, target="llvm", cost="measured", tracker=standing.address, key="cpu", database=database,
        budget=30, time_limit=60,
    )  # fmt: skip
    ran = done["measured"]
    assert ran["measurements"] > 0 and set(ran["milliseconds"]) == {"original", "analytic", "measured"}
    assert f"kept: {ran['kept']}" in text and b"rpc:cpu:" in database.read_bytes()


class Lost(LocalBench):
    """A farm whose servers are gone."""

    def times(self, timers, repeats):
        raise ToolError("no server is left")


@needs_tracker
def test_kernels_are_tuned_on_a_farm(standing, tmp_path):
    asked = StagesRequest(
        "llvm", cost="measured", variant="sequential", tracker=standing.address, key="cpu",
        metaschedule=tmp_path, trials=2,
    )  # fmt: skip
    data, text = stages(_network(), asked)
    assert data["tuned"]["measured"] == 2 * data["tuned"]["kernels"] > 0
    records = list(KernelRecords(tmp_path))
    assert {r.target for r in records} == {"llvm"} and all(r.default_ms > 0 for r in records)
    assert data["cost_model"].startswith("measured:rpc:cpu:") and "run in turn" in text
    net = stage_graph(_network())
    again = tune_stages(net, unit_graph(net.graph, "fused"), tmp_path, search=Search(trials=2), bench=Lost())
    assert again.measured == 0


def test_a_farm_that_is_lost_while_kernels_are_tuned_ends_the_command(tmp_path):
    net = stage_graph(_network())
    with pytest.raises(ToolError, match=r"^no server is left$"):
        tune_stages(net, unit_graph(net.graph, "fused"), tmp_path, search=Search(trials=2), bench=Lost())
    assert not len(KernelRecords(tmp_path))


def test_a_tracker_that_is_not_there_is_refused():
    (port,) = _ports(1)
    with pytest.raises(UsageError, match=rf"no RPC tracker answers at 127.0.0.1:{port}") as refused:
        Farm(Tracker("127.0.0.1", port, "cpu"))
    assert refused.value.exit_status == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"tracker": "host:1", "cost": "measured"}, "--tracker needs --key"),
        ({"key": "cpu", "cost": "measured"}, "--key is of --tracker"),
        ({"tracker": "host:1", "key": "k"}, "--tracker measures: give --cost measured"),
    ],
)
def test_options_that_do_not_go_together_are_refused(options, message):
    with pytest.raises(UsageError, match=message):
        stages(_network(), StagesRequest(**{"target": "llvm"} | options))
    with pytest.raises(UsageError, match=message):
        api.optimize(_network(), **{"target": "llvm"} | options)


@pytest.mark.parametrize("address", ["host", "host:", ":1", "host:0", "host:70000", "host:x"])
def test_an_address_needs_host_and_port(address):
    with pytest.raises(UsageError, match="give HOST:PORT"):
        StagesRequest(tracker=address)
