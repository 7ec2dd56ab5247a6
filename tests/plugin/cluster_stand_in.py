"""Stands in for the programs of a cluster, by the name under which it is called, and for what its tasks do.

Each host of $HOSTS runs a task; those of $LOST end with an error and leave no file. As by the defaults of
Slurm and MPI, the first task that fails ends those behind it, unless the caller forbids that.
"""

import gzip
import os
import subprocess
import sys
from pathlib import Path

RUN = Path(__file__).parents[1] / "data" / "run-h200.json.gz"


def tasks(command, *, fails_alone):
    for host in os.environ["HOSTS"].split():
        done = subprocess.run(command, env={**os.environ, "HOST": host})
        if done.returncode and not fails_alone:
            return done.returncode
    return 0


def scontrol(*_):
    sys.stdout.writelines(f"{host}\n" for host in os.environ["HOSTS"].split())


def srun(*words):
    options = [word for word in words if word.startswith("--") and words.index(word) < words.index("gpukern")]
    return tasks(words[words.index("gpukern") :], fails_alone={"--kill-on-bad-exit=0"} <= {*options})


def mpirun(*words):
    return tasks(words[words.index("sh") :], fails_alone=False)


def kubectl(verb, *words):
    if verb == "get":
        sys.stdout.writelines(f"node/{host}\n" for host in os.environ["HOSTS"].split())
    if verb == "apply":
        import yaml

        spec = yaml.safe_load(Path(words[-1]).read_text())["spec"]
        (container,) = spec["template"]["spec"]["containers"]
        tasks(container["command"], fails_alone=spec["backoffLimitPerIndex"] == 0)
    return int(verb == "wait")  # it times out: no pod succeeds that found something


def gpukern(command, *words):
    if command != "validate":
        return subprocess.call([sys.executable, "-m", "pytest_gpukern", command, *words])
    from pytest_gpukern.report.fleet_files import write_run

    host = os.environ["HOST"]
    if host in os.environ["LOST"].split():
        return 9
    text = gzip.decompress(RUN.read_bytes()).decode()
    uuid = next(word for word in text.split('"') if word.startswith("GPU-"))
    (folder,) = (word.removeprefix("--gpukern-report=") for word in words if "report" in word)
    write_run(Path(folder), host, "0", text.replace(uuid, f"GPU-{host}").encode())
    return 0


sys.exit(globals()[Path(sys.argv[0]).name](*sys.argv[1:]))
