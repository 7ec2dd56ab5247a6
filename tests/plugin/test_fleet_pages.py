"""Runs the scripts of the page about fleets, with the programs of a cluster faked."""

import os
import re
import stat
import subprocess
import sys
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "how-to" / "validate-a-fleet.md").read_text()
STAND_IN = Path(__file__).parent / "cluster_stand_in.py"
PROGRAMS = ("srun", "scontrol", "mpirun", "kubectl", "gpukern")


def blocks(heading, language):
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(rf"```{language}\n(.*?)```", section, re.DOTALL)


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    """A folder with fakes on PATH, where /shared of the page is a folder of its own."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in PROGRAMS:
        program = programs / name
        program.write_text(f"#!{sys.executable}\n__file__ = {str(STAND_IN)!r}\nexec(open(__file__).read())\n")
        program.chmod(program.stat().st_mode | stat.S_IEXEC)
    monkeypatch.setenv("PATH", str(programs), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT), prepend=os.pathsep)
    monkeypatch.setenv("HOSTS", "node1 node2 node3 node10")
    monkeypatch.setenv("LOST", "node2")
    monkeypatch.setenv("SLURM_SUBMIT_DIR", str(tmp_path))
    monkeypatch.setenv("SLURM_JOB_NODELIST", "node[1-3,10]")
    monkeypatch.setenv("COLUMNS", "100")
    return tmp_path


def run(folder, script):
    script = script.replace("/shared", str(folder / "shared"))
    return subprocess.run(["bash", "-u", "-c", script], cwd=folder, capture_output=True, text=True)


def assert_one_host_is_missing(done, folder):
    assert done.returncode == 1, done.stderr
    assert "\nSILENT node2: reported nothing\n" in done.stdout
    assert done.stdout.count("SILENT node") == 1
    names = {path.name for path in folder.glob("*.json")}
    assert names == {"node1-0.json", "node3-0.json", "node10-0.json"}


def test_under_slurm_a_host_that_fails_is_told_and_the_others_are_judged(cluster):
    job, drain = blocks("Slurm", "bash")
    done = run(cluster, job)
    assert_one_host_is_missing(done, cluster / "after")
    assert (cluster / "after" / "fleet.html").stat().st_size
    assert run(cluster, drain).returncode == 0


def test_under_kubernetes_too(cluster):
    (manifest,) = blocks("Kubernetes", "yaml")
    (cluster / "gpukern.yaml").write_text(manifest.replace("/shared", str(cluster / "shared")))
    (script,) = blocks("Kubernetes", "bash")
    assert_one_host_is_missing(run(cluster, script), cluster / "shared" / "after")


def test_the_manifest_is_one_of_kubernetes():
    (manifest,) = blocks("Kubernetes", "yaml")
    job = yaml.safe_load(manifest)
    kubernetes_validate.validate(job, "1.33", strict=True)
    assert job["spec"]["completions"] == job["spec"]["parallelism"], "one pod waits for no other"
    job["spec"]["completionMode"] = 5
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(job, "1.33", strict=True)


def test_under_mpi_too(cluster):
    (cluster / "hosts.txt").write_text("node1\nnode2\nnode3\nnode10\n")
    (script,) = blocks("MPI", "bash")
    assert_one_host_is_missing(run(cluster, script), cluster / "shared" / "after")
