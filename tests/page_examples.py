"""Runs the examples of a page of the documentation: python tests/page_examples.py PAGE FOLDER [NAMES].

All blocks of a page run in order, in one folder: Python in one namespace, and commands of bngrad without a pipe
in the same process. The lines after a command are what it prints; spaces and line breaks do not count, and
`...` is any text. Files that the examples name are those of the help texts' examples: they are there before the
first block, and made anew before a block below a comment `<!-- given: FILES -->`. Below `<!-- numbers vary -->`
the values of numbers do not count. NAMES is a module whose names the page takes as given.

As a program this needs only the package and what the page imports, so that each page runs where its packages are.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnx

ROOT = Path(__file__).parents[1]
ENVIRONMENT = r"(?:[A-Z_]+=\S+ )*"


class Block(NamedTuple):
    """A fenced block: its language, text and first line in the page, and what the comment before it says."""

    language: str
    text: str
    line: int
    files: tuple[str, ...]
    numbers_vary: bool


class Command(NamedTuple):
    """A command, without its comment, and what it prints."""

    line: str
    printed: str


def blocks(page):
    """The fenced blocks of a page, in order; an indented fence is one, too."""
    text = page.read_text(encoding="utf-8")
    fence = r"^(?:<!-- (?:given: (.*)|(numbers vary)) -->\n)?( *)```(\w*)[^\n]*\n(.*?)^\3```$"
    for match in re.finditer(fence, text, re.MULTILINE | re.DOTALL):
        body = re.sub(rf"^{match[3]}", "", match[5], flags=re.MULTILINE)
        line, files = text.count("\n", 0, match.start(3)) + 2, tuple((match[1] or "").split())
        yield Block(match[4], body, line, files, match[2] is not None)


def commands(text):
    """The commands of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, printed = part.replace("\\\n", " ").partition("\n")
        yield Command(re.sub(r"\s+#( .*)?$", "", line), printed)


def is_printed(expected, printed, *, numbers_vary=False):
    """Tests whether a page shows what was printed, by choice but for the values of numbers."""
    words = [re.escape(word).replace(re.escape("..."), ".*") for word in expected.split()]
    if numbers_vary:
        words = [re.sub(r"\d(?:[\d,]|\\\.)*", r"\\d[\\d,.]*", word) for word in words]
    pattern = r"\s+".join(words).replace(r".*\s+", r".*\s*").replace(r"\s+.*", r"\s*.*")
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def how(line):
    """Returns the kind of trial of a command: one of the kinds of `HOW`, or ``elsewhere``."""
    line = re.sub(rf"^{ENVIRONMENT}", "", line)
    for pattern, kind in HOW.items():
        if re.match(pattern, line):
            return kind
    return "elsewhere"


HOW = {
    r"(\S*/)?bngrad (?!oracle|library-path|completion)": "bngrad",
    r"python docs/examples/prepare\.py .*-o build": "shell",
    r"python models/digits_data\.py ": "shell",
    r"cp ": "shell",
    r"cd ops && cmake --preset ": "preset",  # is there such a preset?
    r"make ": "make",  # does such a target exist? Most of them take minutes
    r"(\S*/)?(python -m )?pytest ": "pytest",  # are there such tests?
    r"(python|PYTHON) tests/\S+\.py": "source",  # does the program have these options?
}


def try_command(command, folder, *, numbers_vary=False):
    """Runs a command, or its replacement according to `how`."""
    environment = re.match(ENVIRONMENT, command.line)[0].strip()
    line = command.line.removeprefix(environment).strip()
    kind = how(command.line)
    words = shlex.split(line)
    if kind in ("bngrad", "shell"):
        printed = run_program(kind, line, folder)
        shown = command.printed.strip()
        assert not shown or is_printed(shown, printed, numbers_vary=numbers_vary), f"{line} printed\n{printed}"
    elif kind == "make":
        for recipe in run(["make", "--dry-run", *words[1:]], ROOT).splitlines():
            if re.search(r"bin/python tests/\S+\.py", recipe):
                require_options(shlex.split(recipe)[1:])
    elif kind == "pytest":
        require_tests(words[words.index("pytest") + 1 :] if "pytest" in words else words[1:])
    elif kind == "preset":
        presets = json.loads((ROOT / "ops/CMakePresets.json").read_text(encoding="utf-8"))
        names = re.findall(r"--preset ([\w-]+)", line)
        for group, name in zip(("configurePresets", "buildPresets"), names, strict=True):
            assert name in [preset["name"] for preset in presets[group]], line
    elif kind == "source":
        require_options(words[1:])


def run_program(kind, line, folder):
    """Runs a command that has to succeed; returns what it printed."""
    if kind == "bngrad":
        return run_bngrad(line + (" --repeats 1" if line.split()[1] == "bench" else ""), folder)
    return run(["bash", "-c", re.sub("^python", sys.executable, line)], folder)


def run_bngrad(line, folder):
    """Runs a command line of bngrad that has to succeed: in this process, unless it needs a shell."""
    if re.search(r"[|<>$*;&]", line):
        program = f"{shlex.quote(sys.executable)} -m bngrad "
        return run(["bash", "-c", re.sub(r"^(\S*/)?bngrad ", lambda _: program, line)], folder)
    from bngrad.cli import run as run_command

    printed = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = run_command(shlex.split(line)[1:])
    assert code == 0, f"{line}\n{printed.getvalue()}"
    return printed.getvalue()


def require_tests(words):
    """Checks that a call of pytest has tests; a selection by name is collected."""
    paths = [ROOT / word for word in words if word.startswith("tests")]
    assert paths
    assert [path for path in paths if not path.exists()] == []
    if "-k" in words:
        run([sys.executable, "-m", "pytest", "--collect-only", "-q", *words], ROOT)


def require_options(words):
    """Checks that a program exists, and that its source has the options of a call."""
    source = (ROOT / words[0]).read_text(encoding="utf-8")
    assert {word for word in words if word.startswith("--")} <= set(re.findall(r"--[\w-]+", source)), words


def run(arguments, folder):
    """Runs a program that has to succeed, and returns what it prints."""
    done = subprocess.run(
        arguments,
        cwd=folder,
        text=True,
        check=False,
        timeout=600,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert done.returncode == 0, f"{shlex.join(map(str, arguments))}\n{done.stdout}"
    return done.stdout


def run_page(page, folder, names=None, *, skipped=(), count=None):
    """Runs the first ``count`` examples of a page; returns the last namespace.

    Those whose first line is in ``skipped`` are left out.
    """
    page_blocks = [block for block in blocks(page) if block.language in ("python", "console")][:count]
    for name in ("models", "docs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "given").mkdir()
    files = given_files(folder / "given")
    text = "\n".join(block.text for block in page_blocks)
    for name, path in files.items():
        if re.search(rf"(?<![\w.-]){re.escape(name.replace('.eval', '').replace('safetensors', 'onnx'))}", text):
            shutil.copy(path, folder)
    namespace = {"__name__": "page", **(names or {})}
    os.chdir(folder)
    for block in page_blocks:
        if block.text.splitlines()[0] in skipped:
            continue
        for name in block.files:
            shutil.copy(files[name], folder)
        if block.language == "python":
            exec(compile(block.text, f"{page}:{block.line}", "exec"), namespace)  # noqa: S102 - the page's own
        else:
            for command in commands(block.text):
                try_command(command, folder, numbers_vary=block.numbers_vary)
    return namespace


def exported_for_inference(model):
    """The same model with its batch norms in inference mode, and without their running statistics."""
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            del node.output[1:], node.attribute[:]
    del model.graph.output[1:]
    return model


def given_files(folder):
    """Writes the files that examples take as given, and returns them by name."""
    from cli.example_files import write_example_files

    write_example_files(folder)
    np.save(folder / "class_weights.npy", np.ones(3, np.float32))
    shutil.copy(folder / "model.onnx", folder / "forward.onnx")
    onnx.save(exported_for_inference(onnx.load(folder / "network.onnx")), folder / "classifier.onnx")
    return {path.name: path for path in folder.iterdir()}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="?")
    arguments = parser.parse_args()
    module = importlib.import_module(arguments.names) if arguments.names else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own
        run_page(arguments.page.resolve(), arguments.folder, vars(module) if module else None)
