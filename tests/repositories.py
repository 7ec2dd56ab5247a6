"""Small git repositories, made on the spot, without the user's configuration and without a network."""

from __future__ import annotations

import os
import subprocess

IDENTITY = {
    "GIT_AUTHOR_NAME": "A",
    "GIT_AUTHOR_EMAIL": "a@example.org",
    "GIT_COMMITTER_NAME": "A",
    "GIT_COMMITTER_EMAIL": "a@example.org",
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_CONFIG_NOSYSTEM": "1",
}


class Repository:
    """A repository in `top`; its default branch is `main`."""

    def __init__(self, top):
        self.top = top
        top.mkdir(parents=True, exist_ok=True)
        self.git("init", "--quiet", "--initial-branch=main")

    def git(self, *arguments):
        done = subprocess.run(
            ["git", *arguments],
            cwd=self.top,
            env=os.environ | IDENTITY,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def write(self, **files):
        """Files by name, with `__` for `/` and `.py` added."""
        for name, text in files.items():
            path = self.top / (name.replace("__", "/") + ".py")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)

    def commit(self, **files):
        """Commits everything, with these files; returns the commit."""
        self.write(**files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "changes")
        return self.git("rev-parse", "HEAD")

    @property
    def worktrees(self):
        return self.git("worktree", "list").splitlines()[1:]
