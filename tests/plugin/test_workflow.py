"""Runs the workflow that we propose, step by step as GitHub's runner does: real shells, a fake GPU.

What it would install is already there, and the actions and `gh` are stood in for.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from repositories import Repository

from pytest_gpukern import __version__
from pytest_gpukern.cli import main as cli

from .conftest import repeat_sessions
from .test_against import KERNELS, SUITE, environment

WORKFLOW = (Path(__file__).parents[2] / "pytest_gpukern/cli/templates/kernels.yml").read_text(
    encoding="utf-8"
)
PARSED = yaml.safe_load(WORKFLOW)
JOBS = PARSED["jobs"]
TEST = """
import numpy as np
from numba import cuda, vectorize

@vectorize(["float64(float64)"], target="cuda")
def cube(x):
    return x * x * x

def test_cube(gpu_benchmark):
    x = np.random.default_rng(0).random(100)
    gpu_benchmark.verify(gpu_benchmark(cube, cuda.to_device(x)), x**3, rtol=1e-15)
"""
HEAD, PAGE = "0f3a2b1" + 33 * "0", "https://github.com/mine/saxpy/actions/runs/8/artifacts/9"
RIGHT = KERNELS.replace('"mended": 3', "")
PYTHON = """#!/bin/sh
# As `python -m venv FOLDER`, with what would be installed from the network.
[ "$1 $2" = "-m venv" ] || exit 64
mkdir -p "$3/bin"
printf '#!/bin/sh\\necho "$@" >> "$RUNNER_TEMP/installed"\\n' > "$3/bin/pip"
printf '#!/bin/sh\\nexec {python} -m pytest {options} "$@"\\n' > "$3/bin/pytest"
printf '#!/bin/sh\\nexec {python} -m pytest_gpukern "$@"\\n' > "$3/bin/gpukern"
chmod +x "$3/bin/pip" "$3/bin/pytest" "$3/bin/gpukern"
"""
GH = """#!/bin/sh
# As `gh api`: notes what it is asked for. The pull request has the comments of the file `comments`.
echo "$@" >> "$RUNNER_TEMP/asked"
case "$*" in *--paginate*) cat "$RUNNER_TEMP/comments";; esac
"""


class Runner:
    """Runs a job of the workflow for one event, in a checkout of a commit of `origin`.

    `options` are pytest's, which a real machine would not need; `inputs` are those of a run started by hand.
    """

    def __init__(
        self, folder, origin, event, commit, options="", labels=(), *, fork=False, env=PARSED["env"], **inputs
    ):
        self.workspace, self._temp = folder / "workspace", folder / "temp"
        self._origin, self._commit, self._options, self._env = origin, commit, options, env
        self.project = self.workspace / env["FOLDER"]
        head = {"repo": {"full_name": "other/saxpy" if fork else "mine/saxpy"}, "sha": HEAD}
        pull_request = {"head": head, "label_names": [*labels], "number": 7}
        github = {"event_name": event, "base_ref": "main", "repository": "mine/saxpy", "token": "secret"}
        github |= {"server_url": "https://github.com", "run_id": 8, "workflow": "kernels"}
        github["event"] = {"pull_request": pull_request}
        known = {"github": github, "env": env, "inputs": {"baseline": "", **inputs}, "steps": {}}
        self._contexts = {
            **json.loads(json.dumps(known), object_hook=lambda of: SimpleNamespace(**of)).__dict__,
            "format": str.format,
            "contains": lambda values, value: value in values,
            "hashFiles": lambda pattern, _: "beef" if self._recorded(pattern) else "",
            "always": lambda: True,
            "cancelled": lambda: False,
        }
        self.uploaded, self.output = [], ""

    def _recorded(self, pattern):
        """The files with recorded times: `!**/*.code.json` leaves machine code out."""
        return [path for path in self.workspace.glob(pattern) if not path.name.endswith(".code.json")]

    def comments_after(self, result, page="", *, cancelled=False):
        """Whether the job that posts the comment runs, after the job `gpu` ended with this result.

        `page` is the address of the artifact. A run may be cancelled as a whole.
        """
        gpu = SimpleNamespace(result=result, outputs=SimpleNamespace(page=page))
        self._contexts |= {"needs": SimpleNamespace(gpu=gpu), "cancelled": lambda: cancelled}
        return self._holds(JOBS["comment"]["if"])

    def asked_of_github(self, comments=""):
        """Runs the job that posts the comment; what it asked GitHub, a line each."""
        self._temp.joinpath("comments").write_text(comments)
        asked = self._temp / "asked"
        asked.write_text("")
        for step in JOBS["comment"]["steps"]:
            if self._holds(step.get("if", "true")):
                assert self._step(step) == 0, self.output
        return asked.read_text().splitlines()

    def run(self, job):
        """The status of the job's last failed step, 0 where none failed, None where it was skipped."""
        if not self._holds(job.get("if", "true")):
            return None
        self._prepare()
        status = 0
        for step in job["steps"]:
            condition = step.get("if", "true")
            if (not status or "always()" in condition) and self._holds(condition):
                status = self._step(step) or status
        return status

    def _uploads(self, pattern):
        """What an artifact of such files holds: paths from the folder before the first wildcard."""
        top = self.workspace / pattern.partition("*")[0]
        found = self.workspace.glob(pattern)
        return [of.relative_to(top if top.is_dir() else top.parent) for of in found]

    def _prepare(self):
        programs = self._temp / "programs"
        programs.mkdir(parents=True)
        python = PYTHON.format(python=sys.executable, options=self._options)
        for name, script in (("python", python), ("gh", GH)):
            (programs / name).write_text(script)
            (programs / name).chmod(0o755)
        (self._temp / "path").touch()
        self._environ = environment(
            **self._env,
            CI="true",
            PATH=f"{programs}{os.pathsep}{os.environ['PATH']}",
            RUNNER_TEMP=str(self._temp),
            GITHUB_PATH=str(self._temp / "path"),
        )

    def _step(self, step):
        action = step.get("uses", "").partition("@")[0]
        if action == "actions/checkout":
            self._contexts["steps"].checkout = SimpleNamespace(outcome="success")
            whole = step.get("with", {}).get("fetch-depth") == 0
            depth = [] if whole else ["--depth=1"]
            clone = ["git", "clone", "--quiet", *depth, f"file://{self._origin.top}", str(self.workspace)]
            subprocess.run(clone, check=True)
            checkout = ["git", "checkout", "--quiet", "--detach", *([self._commit] if whole else [])]
            return subprocess.run(checkout, cwd=self.workspace, check=True).returncode
        if action:
            assert action.removeprefix("actions/") in ("setup-python", "download-artifact", "upload-artifact")
            if action == "actions/upload-artifact":
                patterns = self._filled(step["with"]["path"]).split()
                self.uploaded += [str(of) for each in patterns for of in self._uploads(each)]
            return 0
        added = Path(self._environ["GITHUB_PATH"]).read_text().split()
        filled = {name: self._filled(str(value)) for name, value in step.get("env", {}).items()}
        environ = self._environ | filled | {"PATH": os.pathsep.join([*added, self._environ["PATH"]])}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-e", "-c", self._filled(step["run"])],
            cwd=self.project if "pytest" in step["run"] else self.workspace,
            env=environ,
            capture_output=True,
            text=True,
            check=False,
        )
        self.output += done.stdout + done.stderr
        return done.returncode

    def _holds(self, expression):
        return bool(self._value(expression))

    def _filled(self, text):
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: str(self._value(found[1])), text)

    def _value(self, expression):
        """An expression of GitHub's, of the few kinds that there are here."""
        text = expression.replace("labels.*.name", "label_names").replace("&&", "and").replace("||", "or")
        text = text.replace("!cancelled", "not cancelled")
        return eval(text.replace("true", "True"), {"__builtins__": {}}, self._contexts)


@pytest.fixture
def origin(tmp_path):
    """A project whose kernels are right; its suite is measured on the fake GPU."""
    repository = Repository(tmp_path / "origin")
    (repository.top / "tox.ini").write_text("[pytest]\npythonpath = .\n")
    repository.commit(kernels=RIGHT, test_suite=SUITE)
    return repository


def merged_pull_request(origin, **files):
    """What GitHub checks out of a pull request that changes these files: its merge into main."""
    origin.git("checkout", "--quiet", "-b", "change")
    origin.commit(**files)
    origin.git("checkout", "--quiet", "main")
    origin.git("checkout", "--quiet", "-b", "merge")
    origin.git("merge", "--quiet", "--no-ff", "--message", "merge", "change")
    merge = origin.git("rev-parse", "HEAD")
    origin.git("checkout", "--quiet", "main")
    return merge


SLOWER = RIGHT.replace('"first": 1000', '"first": 1100')


@pytest.mark.parametrize(
    ("kernels", "labels"), [(SLOWER, ()), (KERNELS, ("slower on purpose",))], ids=["slower", "wrong"]
)
def test_a_pull_request_fails_where_it_makes_kernels_slower_or_wrong(tmp_path, origin, kernels, labels):
    merge = merged_pull_request(origin, kernels=kernels)
    options = "-p fake_gpu --gpukern-sessions=2"
    runner = Runner(tmp_path, origin, "pull_request", merge, options, labels)
    assert runner.run(JOBS["gpu"]) == 1, runner.output
    assert runner.uploaded == ["report.html", "run.json", "junit.xml", "comment.md"]
    assert "against" in runner.output
    told = (runner.workspace / "comment.md").read_text(encoding="utf-8")
    assert told.startswith("<!-- gpukern -->\n")
    assert ("SLOWER" in told) == (kernels is SLOWER)
    base = origin.git("rev-parse", "main")[:7]
    assert f"--gpukern-against={base}" in told
    assert f"run on {merge[:7]} · compared with {base}" in told
    assert runner.comments_after("failure", PAGE)
    posts = ["api --method POST repos/mine/saxpy/issues/7/comments -F body=@body.md"]
    assert runner.asked_of_github()[1:] == posts
    posted = (runner.workspace / "body.md").read_text(encoding="utf-8")
    told = told.replace("<!-- gpukern -->", "<!-- gpukern kernels -->")
    assert posted == f"{told}\n[Page with plots, and the run file]({PAGE}) · merge of {HEAD[:7]}\n"
    updates = ["api --method PATCH repos/mine/saxpy/issues/comments/12 -F body=@body.md"]
    assert runner.asked_of_github("12\n345\n")[1:] == updates


@pytest.mark.parametrize("label", ["slower on purpose", "weaker on purpose"])
def test_a_pull_request_that_checks_less_fails_without_its_label(tmp_path, origin, label):
    merge = merged_pull_request(origin, test_suite=SUITE.replace("Tolerance()", "Tolerance(rtol=1e-12)"))
    runner = Runner(tmp_path, origin, "pull_request", merge, "-p fake_gpu --gpukern-sessions=2", (label,))
    fails = label != "weaker on purpose"
    assert runner.run(JOBS["gpu"]) == fails, runner.output
    assert "y: rtol 0 → 1e-12" in runner.output
    assert ("the label `weaker on purpose`" in (runner.workspace / "comment.md").read_text()) == fails


def test_a_job_that_measured_nothing_says_so_in_the_place_of_the_comment_before(tmp_path, origin):
    runner = Runner(tmp_path, origin, "pull_request", merged_pull_request(origin, kernels=SLOWER))
    assert runner.run(JOBS["gpu"]) != 0, runner.output
    assert "comment.md" not in runner.uploaded, runner.output
    assert runner.comments_after("failure", PAGE)
    updates = ["api --method PATCH repos/mine/saxpy/issues/comments/12 -F body=@body.md"]
    assert runner.asked_of_github("12\n")[1:] == updates
    posted = (runner.workspace / "body.md").read_text()
    assert posted.startswith("<!-- gpukern kernels -->\n### gpukern: not measured\n")
    link = "[The run](https://github.com/mine/saxpy/actions/runs/8)"
    assert f"No report of {HEAD[:7]} was written. {link}" in posted


def test_a_push_and_a_merge_queue_are_compared_with_the_stored_baseline(tmp_path, origin):
    record = [sys.executable, "-m", "pytest", "-p", "fake_gpu", "-p", "no:cacheprovider", "--gpu-benchmark"]
    record += ["--gpukern-baseline=create", "--gpukern-sessions=1", "--gpukern-isolate=off"]
    subprocess.run(record, cwd=origin.top, env=environment(), check=True, capture_output=True)
    repeat_sessions(origin.top, 3)
    same = origin.commit()
    runner = Runner(tmp_path / "same", origin, "merge_group", same, "-p fake_gpu --gpukern-isolate=off")
    assert runner.run(JOBS["gpu"]) == 0, runner.output
    assert "3 same" in runner.output
    slower = origin.commit(kernels=SLOWER)
    runner = Runner(tmp_path / "slower", origin, "push", slower, "-p fake_gpu --gpukern-isolate=off")
    assert runner.run(JOBS["gpu"]) == 1, runner.output
    assert "SLOWER (kernel/event/cold): +10.0 %" in runner.output
    files = ["report.html", "run.json", "junit.xml", "baselines/doubling.fake-gpu.json"]
    assert runner.uploaded == files


@pytest.mark.parametrize(
    ("labels", "before", "behind"), [((), "slower", "unchecked"), (("slower on purpose",), "none", "none")]
)
def test_behind_the_first_recording_what_proves_nothing_fails_too(tmp_path, origin, labels, before, behind):
    runner = Runner(tmp_path, origin, "pull_request", "", labels=labels)
    steps = [step["env"]["FAIL_ON"] for step in JOBS["gpu"]["steps"] if "FAIL_ON" in step.get("env", {})]
    assert [runner._filled(step) for step in steps] == [before, "slower"]
    (runner.workspace / "tests/baselines").mkdir(parents=True)
    (runner.workspace / "tests/baselines/saxpy.code.json").touch()
    assert [runner._filled(step) for step in steps] == [before, "slower"]
    (runner.workspace / "tests/baselines/saxpy.nvidia-h200.json").touch()
    assert [runner._filled(step) for step in steps] == [behind, "new,uncomparable,unchecked"]


def test_a_project_of_a_monorepo_records_by_hand_and_compares_in_its_folder(tmp_path, origin, monkeypatch):
    project = origin.top / "libs/part"
    project.mkdir(parents=True)
    for name in ("tox.ini", "kernels.py", "test_suite.py"):
        (origin.top / name).rename(project / name)
    monkeypatch.chdir(project)
    assert cli.main(["init"]) == 0
    (project / "tests/test_saxpy.py").unlink()  # the fake GPU runs no kernel
    workflow = yaml.safe_load((origin.top / ".github/workflows/kernels-libs-part.yml").read_text())
    assert (workflow["name"], workflow["env"]["FOLDER"]) == ("kernels-libs-part", "libs/part")
    folders = [workflow["jobs"][name]["defaults"]["run"] for name in ("without-gpu", "gpu")]
    assert folders == 2 * [{"working-directory": "${{ env.FOLDER }}"}]
    commit, options = origin.commit(), "-p fake_gpu --gpukern-isolate=off --gpukern-sessions=1"
    by_hand = {"baseline": "create"}
    for event, inputs in (("workflow_dispatch", by_hand), ("push", {})):
        runner = Runner(tmp_path / event, origin, event, commit, options, env=workflow["env"], **inputs)
        assert runner.run(workflow["jobs"]["gpu"]) == 0, runner.output
        if inputs:
            (record,) = (name for name in runner.uploaded if name.startswith("baselines/"))
            (project / record).parent.mkdir(exist_ok=True)
            (project / record).write_bytes((runner.project / record).read_bytes())
            commit = origin.commit()
    assert "of 3 times" in runner.output
    assert "new" not in runner.output


def test_a_runner_that_lost_its_driver_does_not_go_green(tmp_path, origin):
    runner = Runner(tmp_path, origin, "push", origin.commit())
    assert runner.run(JOBS["gpu"]) == 1, runner.output
    assert "nothing was measured on a GPU" in runner.output


def test_a_fork_is_left_to_the_simulator_which_checks_kernels(tmp_path):
    origin = Repository(tmp_path / "origin")
    commit = origin.commit(test_cube=TEST)
    runner = Runner(tmp_path / "gpu", origin, "pull_request", commit, fork=True)
    assert runner.run(JOBS["gpu"]) is None
    runner = Runner(tmp_path / "simulator", origin, "pull_request", commit, fork=True)
    assert runner.run(JOBS["without-gpu"]) == 0, runner.output
    assert "1 passed" in runner.output
    wrong = origin.commit(test_cube=TEST.replace("x * x * x", "x * x"))
    runner = Runner(tmp_path / "wrong", origin, "pull_request", wrong, fork=True)
    assert runner.run(JOBS["without-gpu"]) == 1
    assert "INCORRECT" in runner.output


def test_it_answers_a_merge_queue_ends_in_time_and_installs_the_release_that_wrote_it():
    events = {"pull_request", "merge_group", "push", "schedule", "workflow_dispatch"}
    assert set(PARSED[True]) == events, "`on` is a truth value in YAML 1.1"
    types = {"opened", "synchronize", "reopened", "labeled", "unlabeled"}
    assert set(PARSED[True]["pull_request"]["types"]) == types, "a label counts at once"
    assert all(job["timeout-minutes"] <= 60 for job in JOBS.values())
    assert re.findall(r"pytest-gpukern\[\w+\](.*)'", WORKFLOW) == [f"=={__version__}"] * 2


def test_it_runs_no_text_of_a_pull_request_and_actions_of_one_commit_only():
    steps = [step for job in JOBS.values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert len(actions) == 6
    assert [action for action in actions if not re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", action)] == []
    assert [step["run"] for step in steps if "${{" in step.get("run", "")] == []


def test_the_workflow_that_hands_times_on_keeps_secrets_off_the_gpu_and_reads_what_it_wrote():
    page = (Path(__file__).parents[2] / "docs/how-to/pytest-benchmark.md").read_text(encoding="utf-8")
    head, *services = re.findall(r"^```yaml\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
    jobs = yaml.safe_load(head + "".join(services))["jobs"]
    measure, *others = jobs.values()
    assert "secrets" not in head
    assert "permissions" not in measure
    assert len(others) == 2
    for job in others:
        assert (job["needs"], job["runs-on"]) == ("measure", "ubuntu-24.04")
        fetched = [step for step in job["steps"] if "download-artifact" in step.get("uses", "")]
        assert [step["with"]["name"] for step in fetched] == [measure["steps"][-1]["with"]["name"]]
    assert "--benchmark-json=times.json" in measure["steps"][1]["run"]
    assert all("times.json" in text for text in services)


def test_only_the_job_that_posts_may_write_and_it_runs_no_code_of_a_pull_request(tmp_path, origin):
    assert PARSED["permissions"] == {"contents": "read"}
    assert [name for name, job in JOBS.items() if "permissions" in job] == ["gpu", "comment"]
    assert JOBS["gpu"]["permissions"] == {"actions": "read", "contents": "read"}
    with_token = [step for step in JOBS["gpu"]["steps"] if "github.token" in str(step)]
    assert [step["name"] for step in with_token] == ["Fetch the run that vouches for what does not change"]
    assert "pytest" not in with_token[0]["run"]
    assert "--event push" in with_token[0]["run"], "a fork's run may not vouch"
    comment = JOBS["comment"]
    assert (comment["runs-on"], comment["permissions"]) == ("ubuntu-24.04", {"pull-requests": "write"})
    assert [step["uses"].partition("@")[0] for step in comment["steps"] if "uses" in step] == [
        "actions/download-artifact"
    ]
    pull_request, push = (Runner(tmp_path, origin, event, "") for event in ("pull_request", "push"))
    assert pull_request.comments_after("failure")
    assert not pull_request.comments_after("skipped"), "as of a fork"
    assert not pull_request.comments_after("cancelled", cancelled=True), "a newer run follows"
    assert pull_request.comments_after("cancelled"), "as after `timeout-minutes`: nothing was measured"
    assert not push.comments_after("success")
