"""Runs a composite action as GitHub's runner does, step by step; the actions that it uses have stand-ins."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import yaml

_EXPRESSION = re.compile(r"\$\{\{\s*(.*?)\s*\}\}")
_TOKEN = re.compile(r"'[^']*'|&&|\|\||==|!=|!|[()]|[\w.-]+")
_OPERATORS = {"&&": "and", "||": "or", "!": "not ", "==": "==", "!=": "!=", "(": "(", ")": ")"}


@dataclass
class Job:
    """A job that runs one composite action.

    The cache is a folder with an entry for each key; artifacts are copied to a folder by name. `python` is what
    actions/setup-python has installed.
    """

    action: Path
    workspace: Path
    folder: Path
    python: str
    inputs: dict[str, str] = field(default_factory=dict)
    cache: dict[str, Path] = field(default_factory=dict)
    steps: dict[str, str] = field(default_factory=dict)
    """The conclusion of each step, by name."""
    log: str = ""

    def __post_init__(self):
        self.temp, self.artifacts = self.folder / "temp", self.folder / "artifacts"
        for path in (self.temp, self.artifacts):
            path.mkdir(parents=True)
        self.summary = self.folder / "summary.md"
        self.summary.touch()
        self._outputs = {}

    def run(self):
        """Runs the steps; returns whether all succeeded."""
        action = yaml.safe_load((self.action / "action.yml").read_text(encoding="utf-8"))
        unknown = set(self.inputs) - set(action["inputs"])
        assert not unknown, f"the action has no inputs {unknown}"
        assert all("default" in entry or entry.get("required") for entry in action["inputs"].values())
        self._inputs = {name: entry.get("default", "") for name, entry in action["inputs"].items()} | self.inputs
        self._success = True
        for step in action["runs"]["steps"]:
            condition = _EXPRESSION.fullmatch(step.get("if", "${{ true }}")).group(1)
            if "cancelled()" not in condition:
                condition = f"success() && ({condition})"
            if not self._evaluated(condition):
                self.steps[step["name"]] = "skipped"
                continue
            succeeded = self._use(step) if "uses" in step else self._shell(step)
            self.steps[step["name"]] = "success" if succeeded else "failure"
            self._success &= succeeded
        return self._success

    def _evaluated(self, expression):
        """The value of an expression of GitHub's: contexts, strings, operators."""
        text = "".join(f" {self._token(token)} " for token in _TOKEN.findall(expression))
        return eval(text, {"__builtins__": {}})  # noqa: S307 - of our own action, every token quoted

    def _token(self, token):
        if token in _OPERATORS:
            return _OPERATORS[token]
        if token.startswith("'"):
            return repr(token[1:-1])
        values = {"true": True, "success": self._success, "cancelled": False, "runner.temp": str(self.temp)}
        if token in ("success", "cancelled"):
            return f"(lambda: {values[token]})"
        if token in values:
            return repr(values[token])
        context, _, name = token.partition(".")
        if context == "inputs":
            return repr(self._inputs[name])
        step, kind, output = name.split(".")
        assert (context, kind) == ("steps", "outputs"), token
        return repr(self._outputs.get(step, {}).get(output, ""))

    def _filled(self, value):
        return _EXPRESSION.sub(lambda match: str(self._evaluated(match.group(1))), str(value))

    def _shell(self, step):
        assert step["shell"] == "bash"
        assert "${{" not in step["run"], "an input in a script would run as commands"
        script, output = self.folder / "step.sh", self.folder / "output"
        script.write_text(step["run"], encoding="utf-8")
        output.write_text("", encoding="utf-8")
        environment = os.environ | {
            "GITHUB_ACTIONS": "true",
            "GITHUB_ACTION_PATH": str(self.action),
            "GITHUB_WORKSPACE": str(self.workspace),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(self.summary),
            "RUNNER_TEMP": str(self.temp),
        }
        environment |= {name: self._filled(value) for name, value in step.get("env", {}).items()}
        done = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", script],
            cwd=self.workspace,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        self.log += done.stdout
        lines = output.read_text(encoding="utf-8").splitlines()
        self._outputs[step.get("id")] = dict(line.split("=", 1) for line in lines)
        return done.returncode == 0

    def _use(self, step):
        action, _, revision = step["uses"].partition("@")
        assert re.fullmatch("[0-9a-f]{40}", revision), f"{action} is not pinned"
        inputs = {name: self._filled(value) for name, value in step["with"].items()}
        if action == "actions/setup-python":
            self._outputs[step["id"]] = {"python-path": self.python}
        elif action == "actions/cache/restore":
            hit = inputs["key"] in self.cache
            if hit:
                shutil.copytree(self.cache[inputs["key"]], inputs["path"], symlinks=True)
            self._outputs[step["id"]] = {"cache-hit": str(hit).lower()}
        elif action == "actions/cache/save":
            self.cache[inputs["key"]] = Path(inputs["path"])
        elif action == "actions/upload-artifact":
            source = self.workspace / inputs["path"]
            if source.exists():
                shutil.copytree(source, self.artifacts / inputs["name"])
        else:
            raise AssertionError(f"{action} has no stand-in")
        return True
