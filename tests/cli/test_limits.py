"""Limits on time, Ctrl-C, SIGTERM, the line of progress on a terminal, and what a command loads, from outside."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios
from importlib.resources import files
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tvm_cascade import plan as plan_api
from tvm_cascade.cascading import PlanOptions, search_cache
from tvm_cascade.cli.group import tvm_cascade as main
from tvm_cascade.cli.guard import ended_early
from tvm_cascade.cli.progress_bar import values
from tvm_cascade.search_monitor import Progress, SearchMonitor

MODEL = str(files("tvm_cascade.testing") / "data" / "shapes.tflite")
BUFFERS = "id,lower,upper,size\n" + "".join(
    f"{i},{i * 7 % 19},{i * 7 % 19 + 1 + i * 5 % 11},{1 + i * 37 % 53}\n" for i in range(60)
)
COMMANDS = {
    "plan": [MODEL],
    "compile": [MODEL, "--target", "host", "-o", "never"],
    "order": [MODEL],
    "allocate": ["buffers.csv"],
    "stages": [MODEL, "--target", "cuda"],
    "optimize": [MODEL, "--target", "cuda"],
}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "buffers.csv").write_text(BUFFERS)
    monkeypatch.chdir(tmp_path)


def call(*args: str) -> Result:
    return CliRunner().invoke(main, list(args))


def python(code: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own; one that does not end is an error."""
    return subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, timeout=120, check=False)


@pytest.mark.parametrize("name", COMMANDS)
def test_a_limit_that_is_no_time_is_refused(name: str) -> None:
    for value in ("0", "-1", "nan", "inf", "soon"):
        done = call(name, *COMMANDS[name], f"--time-limit={value}")
        assert done.exit_code == 2 and "time-limit" in done.stderr.splitlines()[-1], value
    assert not Path("never").exists()


@pytest.mark.parametrize("name", [n for n in COMMANDS if n != "compile"])
def test_every_search_says_whether_it_was_limited(name: str) -> None:
    done = call(name, *COMMANDS[name], "--json")
    told = json.loads(done.stdout)
    assert told["limited"] is False, done.stderr
    if name == "optimize":
        assert told["bound"] is None  # none is known
    else:
        assert told["optimal"] or told["gap_percent"] > 0, told
    if name != "allocate":
        done = call(name, *COMMANDS[name], "--json", "--time-limit", "1e-9")
        assert done.exit_code == 0 and isinstance(json.loads(done.stdout)["limited"], bool)


def test_an_early_end_is_told_with_its_bound() -> None:
    early = json.loads(call("allocate", "buffers.csv", "--time-limit", "1e-9", "--json", "-o", "early.csv").stdout)
    whole = json.loads(call("allocate", "buffers.csv", "--json").stdout)
    assert early["limited"] and not early["optimal"] and not whole["limited"]
    assert early["bound_bytes"] <= whole["peak_bytes"] <= early["peak_bytes"]
    rows = [line.split(",") for line in Path("early.csv").read_text().splitlines()[1:]]
    assert max(int(size) + int(offset) for *_, size, offset in rows) == early["peak_bytes"]
    text = call("allocate", "buffers.csv", "--time-limit", "1e-9").stdout
    assert "\nlimited   " in text and f"down to the lower bound of {early['bound_bytes']}" in " ".join(text.split())
    assert "limited" not in call("allocate", "buffers.csv").stdout


def test_a_capacity_that_was_not_met_is_refused_with_the_mark() -> None:
    bound = json.loads(call("allocate", "buffers.csv", "--json").stdout)["bound_bytes"]
    for capacity, limited in ((bound - 1, False), (bound, True)):
        done = call("allocate", "buffers.csv", "--capacity", str(capacity), "--time-limit", "1e-9", "--json")
        told = json.loads(done.stdout)
        assert done.exit_code == 1 and told["limited"] is limited and told["error"]["kind"] == "infeasible"


def chain_of_pools(operators: int) -> None:
    """Write `chain.onnx`: average pools of 3x3 in a row over 8x8 pixels of two channels."""
    onnx = pytest.importorskip("onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = [
        make.make_node("AveragePool", [f"t{i}"], [f"t{i + 1}"], kernel_shape=[3, 3], pads=[1, 1, 1, 1])
        for i in range(operators)
    ]
    ends = [make.make_tensor_value_info(name, kind, [1, 2, 8, 8]) for name in ("t0", f"t{operators}")]
    graph = make.make_graph(nodes, "chain", ends[:1], ends[1:])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 17)]), "chain.onnx")


@pytest.mark.parametrize("operators, rows", [(200, 30_000), (201, 30_000), (20, 100)])
def test_a_plan_says_what_was_not_searched_for_so_many_rows(
    operators: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_cache, "_MOST_ROWS", rows)
    chain_of_pools(operators)
    told = json.loads(call("plan", "chain.onnx", "--json").stdout)
    assert told["limited"] is (operators == 20) and bool(told["not_searched"]) is told["limited"]
    line = ended_early(told)
    assert ("168 rows: a cap (--sram) may find" in line) is (operators == 20)
    assert ("lower bound of" in line) is told["limited"]
    assert json.loads(call("plan", "chain.onnx", "--layerwise", "--json").stdout)["limited"] is False


def test_longer_segments_are_told_where_their_bounds_lie_below_the_plan() -> None:
    """Above 200 operators segments of more than 32 are not searched: told unless bounds prove that none is smaller."""
    chain_of_pools(201)
    found = plan_api("chain.onnx")
    graph, peak = found.plan.graph, found.plan.peak
    text = "of more than 32 of the 201 operators"
    assert search_cache.not_searched(graph, PlanOptions(), peak) == ""
    assert text in search_cache.not_searched(graph, PlanOptions(), 100 * peak)
    assert text in search_cache.not_searched(graph, PlanOptions())  # nothing is known about the plan


INTERRUPTED = """
import os, signal
from tvm_cascade.cascading import planner
from tvm_cascade.cli import main
real, left = planner.searches, [signal.SIGINT] * {times}
def searches(*args):
    while left:
        os.kill(os.getpid(), left.pop())
    return real(*args)
planner.searches = searches
main(["plan", {model!r}, "--json"])
"""


def test_an_early_end_tells_the_bound_of_the_search() -> None:
    """More time may come down to this bound; the other one belongs to a better planner."""
    told = ended_early({"limited": True, "peak_bytes": 120, "bound_bytes": 50, "search_bound_bytes": 100})
    assert told.endswith("down to the lower bound of 100")
    assert "bound" not in ended_early({"limited": True, "cost_ms": 2.0})


def test_the_first_interrupt_of_plan_gives_the_best_so_far() -> None:
    done = python(INTERRUPTED.format(times=1, model=MODEL))
    assert done.returncode == 0, done.stderr
    early = json.loads(done.stdout)
    flat = json.loads(call("plan", MODEL, "--layerwise", "--json").stdout)
    assert early["limited"] is True and 0 < early["bound_bytes"] <= early["peak_bytes"] <= flat["peak_bytes"]
    assert early["search_bound_bytes"] <= early["peak_bytes"]
    assert "interrupted; ending with the best so far" in done.stderr and "Traceback" not in done.stderr


def test_the_second_interrupt_ends_the_command() -> None:
    done = python(INTERRUPTED.format(times=2, model=MODEL))
    assert done.returncode == 130 and done.stderr.splitlines()[-1] == "tvm-cascade: interrupted"
    assert json.loads(done.stdout)["error"]["kind"] == "interrupted"


@pytest.mark.parametrize("asked", ["", "--json"])
def test_sigterm_ends_a_command_inside_of_a_long_call(asked: str) -> None:
    """The call, minutes of a hash, returns to Python only at its end, where alone handlers of signals run."""
    done = python(f"""
import hashlib, os, signal, threading
import tvm_cascade.api
from tvm_cascade.cli import main
def plan(*args, **kwargs):
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
tvm_cascade.api.plan = plan
main(["plan", {MODEL!r}, *{asked.split()!r}])
""")
    assert (done.returncode, done.stderr) == (143, "tvm-cascade: terminated\n")
    assert (json.loads(done.stdout)["error"]["kind"] == "terminated") if asked else not done.stdout


SEARCHING = """
import sys, time
import click
from tvm_cascade.cli import progress_bar
from tvm_cascade.cli.guard import guarded, say
from tvm_cascade.search_monitor import monitor
progress_bar.EVERY, progress_bar.QUICK = 0.01, {quick}
drawings, draw = [], progress_bar._Bar._draw
progress_bar._Bar._draw = lambda bar: (draw(bar), drawings.append(bar))
def drawn():
    "Wait for twelve drawings, where there are any."
    enough, end = len(drawings) + 12, time.monotonic() + 60
    while {waits} and len(drawings) < enough and time.monotonic() < end:
        time.sleep(0.01)
@click.command()
@guarded
def search():
    drawn()
    monitor().report("arena", 3, 10, best=6400, bound=32)
    drawn()
    say("a line")
    monitor().report("layouts", 7)
    drawn()
    print(sorted({{"tqdm"}} & set(sys.modules)))
search()
"""


def on_terminal(code: str) -> tuple[str, str]:
    """What a program writes to standard error, a terminal of 100 columns, and to standard output."""
    mine, its = pty.openpty()
    fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    with subprocess.Popen((sys.executable, "-c", code), stdout=subprocess.PIPE, stderr=its, text=True) as process:
        os.close(its)
        said = b""
        while True:
            try:
                part = os.read(mine, 1 << 16)
            except OSError:  # the other side is closed
                break
            if not part:
                break
            said += part
        assert process.stdout is not None
        out = process.stdout.read()
    os.close(mine)
    return said.decode(), out


def test_a_terminal_shows_phase_best_value_and_bound() -> None:
    said, out = on_terminal(SEARCHING.format(quick=0.0, waits=True))
    lines = said.replace("\n", "\r").split("\r")
    assert out == "['tqdm']\n"
    assert any(line.startswith("working [") for line in lines)  # a sign of life before anything is counted
    assert any(
        line.startswith("arena:  30%|") and "3/10" in line and "best 6,400 B, bound 32 B]" in line for line in lines
    )
    assert any(line.startswith("layouts: 7 [") for line in lines)
    assert "a line" in lines
    assert len([line for line in lines if line.strip()]) > 30  # it is drawn again and again
    assert not lines[-1].strip()  # and removed at the end


def test_what_reads_lowers_and_estimates_tells_how_far_it_is() -> None:
    told: dict[str, Progress] = {}
    with SearchMonitor(show=lambda progress: told.update({progress.phase: progress})):
        plan_api(MODEL, target="cortex-m4")
    phases = {"operators of the file", "operators read", "operators lowered", "operators analysed", "kernels chosen"}
    phases |= {"forms of kernels", "bytes of code", "kernels written", "kernels read", "segments estimated"}
    assert phases <= set(told)
    assert all(told[phase].done == told[phase].total for phase in phases)


def test_short_commands_and_other_files_get_no_bar() -> None:
    said, out = on_terminal(SEARCHING.format(quick=60.0, waits=False))
    assert (said, out) == ("a line\r\n", "[]\n")
    done = python(SEARCHING.format(quick=0.0, waits=False))
    assert (done.stdout, done.stderr) == ("[]\n", "a line\n")


def test_values_are_told_as_far_as_they_are_known() -> None:
    assert values(Progress("order", 1)) == ""
    assert values(Progress("arena", 1, 2, best=1234567)) == "best 1,234,567 B"
    assert values(Progress("stages", 1, 2, 0.5, 0.25, "ms")) == "best 0.5 ms, bound 0.25 ms"


def test_help_imports_no_command() -> None:
    """Nor NumPy, which some of them need."""
    done = python("""
import atexit, sys
from tvm_cascade.cli import main
from tvm_cascade.cli.group import _COMMANDS
wanted = {"numpy", *(f"tvm_cascade.cli.{module}" for module, _ in _COMMANDS.values())}
atexit.register(lambda: print(len(wanted) > 1, sorted(wanted & set(sys.modules))))
main(["--help"])
""")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "True []", done.stderr


def test_plan_loads_no_libraries_of_devices() -> None:
    """It runs nothing on them, nor does what orders; commands that compile for them have them (`test_tvm_import`)."""
    for command in ("plan", "order"):
        done = python(f"""
import atexit, sys
from tvm_cascade.cli import main
atexit.register(lambda: print("tvm_runtime_extra" in str(vars(sys.modules["tvm.base"]))))
main([{command!r}, {MODEL!r}])
""")
        assert done.returncode == 0 and done.stdout.splitlines()[-1] == "False", done.stderr
