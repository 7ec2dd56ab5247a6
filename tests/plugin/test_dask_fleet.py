"""Tests `gpukern validate --dask` on a real cluster of processes, whose GPUs and pytest are made up."""

import asyncio
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import dask
import made_up_results as made_up
import pytest
from distributed import Client
from made_up_runs import write_run_file
from msgspec import structs
from waiting import until

from pytest_gpukern.cli import dask_fleet
from pytest_gpukern.cli import main as cli
from pytest_gpukern.gpu.processes import is_alive
from pytest_gpukern.package import __version__
from pytest_gpukern.report.run import RunResults
from pytest_gpukern.values.result import OutputError

HERE = Path(__file__).parent
WORKERS = 3


@pytest.fixture(autouse=True)
def no_loop_of_others():
    """The tests of pages leave a loop of Playwright's running in this thread; a command has none."""
    others = asyncio._get_running_loop()
    asyncio._set_running_loop(None)
    yield
    asyncio._set_running_loop(others)


@pytest.fixture(autouse=True)
def ctrl_c():
    """A shell that starts this in the background has Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class Cluster:
    """A cluster in a process of its own, and the folder that says what its workers see and do."""

    def __init__(self, folder, workers):
        self.folder = folder
        self.plan(hosts={})
        path = os.pathsep.join([str(HERE), str(HERE.parent / "unit"), os.environ.get("PYTHONPATH", "")])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "dask_stand_in.py"), "serve", str(workers)],
            env=os.environ | {"STAND_IN": str(folder), "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        self.address = self.process.stdout.readline().strip()

    def plan(self, **plan):
        self.folder.joinpath("plan.json").write_text(json.dumps(plan))

    def begun(self):
        """GPU → the processes that measured it."""
        files = sorted(self.folder.joinpath("begun").iterdir())
        processes = {}
        for file in files:
            processes.setdefault(file.name.partition(".")[0], []).append(json.loads(file.read_text()))
        return processes

    def close(self):
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


def new_cluster(folder, workers):
    folder.joinpath("begun").mkdir()
    libraries = {"cupy": "14.0", "pytest-gpukern": __version__}
    fingerprint = structs.replace(made_up.FINGERPRINT, device_uuid="GPU-any", libraries=libraries)
    kinds = ((5_000, None), (50_000, None), (1_000_000, 3_000_000_000))  # short, compute, memory
    results = [
        made_up.result(
            f"numba.k{number}",
            made_up.measured(kinds[number % 3][0], timer="cupti", traffic_bytes=kinds[number % 3][1]),
            nodeid=f"suites/test_it.py::test_work[{number}]",
            fingerprint=fingerprint,
            errors={"y": OutputError(10, 0, 0.0, 0.0, 0.0, determinism="bitwise", bits="beef")},
            ceilings={"device_copy_bytes_per_s": 4e12},
        )
        for number in range(15)
    ]
    write_run_file(folder / "run.json", RunResults(results))
    return Cluster(folder, workers)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    cluster = new_cluster(tmp_path_factory.mktemp("cluster"), WORKERS)
    yield cluster
    cluster.close()


@pytest.fixture
def own(tmp_path):
    """A cluster that a test may ruin."""
    cluster = new_cluster(tmp_path, 2)
    yield cluster
    cluster.process.kill()
    cluster.close()


@pytest.fixture
def fleet(shared, capfd, monkeypatch):
    """Validates a fleet as planned; returns status, output and complaints."""
    monkeypatch.setenv("COLUMNS", "400")
    for file in shared.folder.joinpath("begun").iterdir():
        file.unlink()

    def run(*options, cluster=shared, **plan):
        cluster.plan(**plan)
        status = cli.main(["validate", f"--dask={cluster.address}", *options])
        return status, *capfd.readouterr()

    yield run
    with Client(shared.address, set_as_default=False) as client:
        client.wait_for_workers(WORKERS, timeout=60)  # a nanny starts again what was killed


def hosts(gpus):
    return {str(host): [f"GPU-{host}-{index}" for index in range(gpus)] for host in range(WORKERS)}


def test_each_gpu_is_measured_once_and_pinned(fleet, shared):
    status, out, err = fleet(hosts=hosts(3))
    assert (status, err) == (0, ""), out
    assert {gpu: len(runs) for gpu, runs in shared.begun().items()} == {
        gpu: 1 for of_host in hosts(3).values() for gpu in of_host
    }
    assert "gpukern validate --dask: 9 of 9 cards, host" in out


def test_a_slow_gpu_is_confirmed_beside_a_neighbour_while_others_go_on(fleet, shared, tmp_path):
    kept, table = tmp_path / "kept", tmp_path / "fleet.csv"
    written = [f"--gpukern-report={kept}/", f"--gpukern-report={table}"]
    status, out, _ = fleet(*written, hosts=hosts(4), acts={"GPU-1-0": {"slower": 1.05}})
    assert status == 1
    assert "SLOW host1 GPU 0: all kernels 5.0 % slower than its peers\n" in out
    assert out.index("host1 GPU 0 is in doubt") < out.index(": 12 of 12 cards, host")
    runs = shared.begun()
    assert sorted(map(len, runs.values())) == [1] * 10 + [4, 4], "and a neighbour"
    tests = {argument for argument in runs["GPU-1-0"][-1]["arguments"] if argument.startswith("suites/")}
    assert tests == {f"suites/test_it.py::test_work[{number}]" for number in range(15)}
    names = [file.name for file in kept.iterdir()]
    assert {"host0-0.json", "host1-0.json", "host1-0.2.json", "host1-0.4.json"} <= {*names}
    assert (len(names), len(table.read_text().splitlines())) == (18, 13)
    assert cli.main(["fleet", str(kept)]) == 1


def test_a_killed_worker_loses_what_it_measured_and_only_that(fleet, shared):
    status, out, _ = fleet(hosts=hosts(3), acts={"GPU-1-1": {"signals": {"SIGKILL": 0}, "hangs": True}})
    assert status == 1
    assert "host1 GPU 1 is lost: its worker left" in out
    assert "SILENT host1 GPU 1" in out
    runs = shared.begun()
    assert {gpu: len(of) for gpu, of in runs.items()} == {gpu: 1 for of in hosts(3).values() for gpu in of}
    assert runs["GPU-1-2"][0]["worker"] != runs["GPU-1-1"][0]["worker"], "by the worker that came back"
    ended(runs["GPU-1-1"][0]["pid"])


def ended(pid):
    """Waits until a process has ended, which the kernel sees to."""
    assert until(lambda: not is_alive(pid))


def test_a_pytest_that_hangs_is_ended_and_its_worker_goes_on(fleet, shared):
    status, out, _ = fleet(hosts=hosts(3), hangs_s=3.0, acts={"GPU-1-0": {"hangs": True}})
    assert status == 1
    assert "host1 GPU 0 is lost: its pytest hung: it printed nothing for 3 s" in out
    runs = shared.begun()
    assert len(runs) == 9
    assert runs["GPU-1-1"][0]["worker"] == runs["GPU-1-0"][0]["worker"]
    ended(runs["GPU-1-0"][0]["pid"])


def test_a_worker_that_hangs_is_named_and_what_it_has_not_begun_is_not_measured_elsewhere(
    fleet, shared, monkeypatch
):
    monkeypatch.setattr(dask_fleet, "_SILENT_S", 4.0)
    acts = {"GPU-1-0": {"signals": {"SIGSTOP": 0}, "hangs": True}}
    status, out, _ = fleet(hosts=hosts(2), acts=acts)
    runs = shared.begun()
    os.kill(runs["GPU-1-0"][0]["worker"], signal.SIGKILL)
    assert status == 1
    assert "host1 GPU 0 is lost: its worker gave no sign of life for 4 s" in out
    assert "host1 GPU 1 is lost: its worker left before" in out
    assert runs.keys() == {"GPU-0-0", "GPU-0-1", "GPU-1-0", "GPU-2-0", "GPU-2-1"}


def test_a_scheduler_that_goes_ends_the_run_and_what_came_is_judged(fleet, own):
    going = {"GPU-1-1": {"signals": {"SIGKILL": own.process.pid}, "hangs": True}}
    status, out, _ = fleet(cluster=own, hosts={"1": ["GPU-1-0", "GPU-1-1", "GPU-1-2"]}, acts=going)
    assert status == 1
    assert "3 of 3 cards" in out
    for gpu in (1, 2):
        assert f"host1 GPU {gpu} is lost: the scheduler is gone" in out
    assert "NVIDIA H200, 1 card" in out
    ended(own.begun()["GPU-1-1"][0]["pid"])


def test_a_run_that_says_nothing_of_its_gpu_a_host_without_one_and_other_versions_are_named(
    fleet, monkeypatch
):
    monkeypatch.setattr(dask_fleet, "__version__", "0.0.1")
    acts = {
        "GPU-0-2": {"software": ("580.159", "570.1")},
        "GPU-1-1": {"software": ('"14.0"', '"13.9"')},
        "GPU-0-0": {"status": 3, "says": "INTERNALERROR> RuntimeError: gone"},
        "GPU-0-1": {"writes": '{"schema": 6}'},
        "GPU-1-0": {"measures": "GPU-2-0"},
    }
    status, out, _ = fleet(hosts=hosts(4) | {"2": []}, acts=acts)
    assert status == 1
    assert "driver 570.1 on host0 GPU 2 (most: 580.159)" in out
    assert "cupy 13.9 on host1 GPU 1 (most: 14.0)" in " ".join(out.split())
    assert "this client 0.0.1" in out
    assert "host2 GPU ? is lost: the NVIDIA driver is not loaded" in out
    assert "SILENT host2 GPU ?" in out
    assert "host0 GPU 0 is lost: its pytest ended with status 3: INTERNALERROR> RuntimeError: gone" in out
    assert "host0 GPU 1 is lost: its file cannot be read: " in out
    assert "host1 GPU 0 is lost: its process measured host1 GPU 0" in out


def test_a_gpu_that_several_workers_see_is_measured_once_at_a_time(fleet, shared):
    same = {str(worker): ["GPU-0-0", "GPU-0-1", "GPU-0-2", "GPU-0-3"] for worker in range(WORKERS)}
    status, out, _ = fleet(hosts=same, acts={"GPU-0-1": {"slower": 1.05}})
    assert status == 1
    assert "SLOW host" in out
    assert "is lost" not in out
    assert sorted(map(len, shared.begun().values())) == [1, 1, 4, 4]
    assert "4 of 4 cards" in out


def test_a_worker_without_a_gpu_runs_host_variants_where_none_is_needed(fleet, tmp_path):
    options = ("--gpukern-backend=host", "--gpukern-size=smoke", "-k", "vector_exp and host and not broken")
    status, out, _ = fleet(*options, f"--gpukern-report={tmp_path}/", hosts=hosts(1) | {"2": []})
    assert status == 0, out
    assert sorted(file.name for file in tmp_path.iterdir()) == [f"host{n}-0.json" for n in range(WORKERS)]
    assert re.search(r"host2 GPU 0: [1-9]\d* cases, ", out)


def test_ctrl_c_ends_what_was_started(fleet, shared):
    acts = {"GPU-1-1": {"signals": {"SIGINT": os.getpid()}, "hangs": True}}
    status, *_ = fleet(hosts={"1": ["GPU-1-1"]}, acts=acts)
    assert status == 128 + signal.SIGINT
    ended(shared.begun()["GPU-1-1"][0]["pid"])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--gpukern-baseline=append", "--gpukern-baseline-dir=x"], "append would write on workers"),
        (["--gpukern-report=run.xml"], "--gpukern-report=run.xml is neither a folder"),
    ],
)
def test_what_makes_no_sense_on_a_cluster_is_refused(options, said, capsys):
    assert cli.main(["validate", "--dask=tcp://127.0.0.1:1", *options]) == 4
    assert said in capsys.readouterr().err


def test_a_cluster_without_workers_is_not_healthy(tmp_path, capsys):
    cluster = new_cluster(tmp_path, 0)
    assert cli.main(["validate", f"--dask={cluster.address}"]) == 1
    assert "has no workers" in capsys.readouterr().err
    cluster.close()


def test_without_dask_it_says_what_to_install(capsys, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert cli.main(["validate", "--dask=tcp://127.0.0.1:1"]) == 4
    assert "pip install 'pytest-gpukern[fleet]'" in capsys.readouterr().err


# The last one: a client of Dask that could not connect may disturb the next one in its process.
@pytest.mark.parametrize("scheduler", ["missing.json", "tcp://127.0.0.1:1"])
def test_a_scheduler_that_is_not_there_is_named(scheduler, capsys):
    with dask.config.set({"distributed.comm.timeouts.connect": "1s"}):
        assert cli.main(["validate", f"--dask={scheduler}"]) == 1
    assert f"there is no scheduler at {scheduler}: " in capsys.readouterr().err
