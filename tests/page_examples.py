"""Runs the examples of a page of the documentation: python tests/page_examples.py PAGE FOLDER [NAMES].

All blocks of a page run in order, in one folder: Python in one namespace, commands in processes of their own. The
lines after a command are what it prints; spaces and line breaks do not count, and `...` stands for any text. Files
that the examples name are made by `GIVEN`, before the first block, and before a block below a comment
`<!-- given: FILES -->`. NAMES is a module whose names the page takes as given.

As a program this needs only the package and what the page imports, so that each page runs where its packages are.
"""

from __future__ import annotations

import argparse
import importlib
import os
import re
import shlex
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
    """A fenced block: its language, text and first line in the page, and the files of a comment in front of it."""

    language: str
    text: str
    line: int
    given: tuple[str, ...]


class Command(NamedTuple):
    """A command, without its comment, and what it prints."""

    line: str
    printed: str


def blocks(page):
    """The fenced blocks of a page, in order; an indented fence is one, too."""
    text = page.read_text(encoding="utf-8")
    fence = r"^(?:<!-- given: (.*) -->\n)?( *)```(\w*)[^\n]*\n(.*?)^\2```$"
    for match in re.finditer(fence, text, re.MULTILINE | re.DOTALL):
        body = re.sub(rf"^{match[2]}", "", match[4], flags=re.MULTILINE)
        yield Block(match[3], body, text.count("\n", 0, match.start(2)) + 2, tuple((match[1] or "").split()))


def commands(text):
    """The commands of a console block."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        line, _, printed = part.replace("\\\n", " ").partition("\n")
        yield Command(re.sub(r"\s+#( .*)?$", "", line), printed)


def is_printed(expected, printed):
    """Whether a page shows what was printed."""
    words = [re.escape(word).replace(re.escape("..."), ".*") for word in expected.split()]
    pattern = r"\s+".join(words).replace(r".*\s+", r".*\s*").replace(r"\s+.*", r"\s*.*")
    return re.fullmatch(pattern, printed.strip(), re.DOTALL) is not None


def how(line):
    """How a command is tried: ``bngrad``, ``shell``, ``make``, ``pytest``, ``source`` or ``elsewhere``."""
    line = re.sub(rf"^{ENVIRONMENT}", "", line)
    for pattern, kind in HOW.items():
        if re.match(pattern, line):
            return kind
    return "elsewhere"


HOW = {
    r"(\S*/)?bngrad (?!oracle|library-path)": "bngrad",
    r"python docs/examples/prepare\.py .*-o build": "shell",
    r"cp ": "shell",
    r"make ": "make",  # does such a target exist? Most of them take minutes
    r"(\S*/)?(python -m )?pytest ": "pytest",  # are there such tests?
    r"(python|PYTHON) tests/\S+\.py": "source",  # does the program have these options?
}


def try_command(command, folder):
    """Runs a command, or what `how` says instead."""
    environment = re.match(ENVIRONMENT, command.line)[0].strip()
    line = command.line.removeprefix(environment).strip()
    kind = how(command.line)
    words = shlex.split(line.split(" | ")[0])
    if kind == "bngrad":
        once = ["--repeats", "1"] if words[1] == "bench" else []
        printed = run([sys.executable, "-m", "bngrad", *words[1:], *once], folder)
        assert not command.printed.strip() or is_printed(command.printed, printed), f"{line} printed\n{printed}"
    elif kind == "shell":
        run(["bash", "-c", re.sub("^python", sys.executable, line)], folder)
    elif kind == "make":
        for recipe in run(["make", "--dry-run", *words[1:]], ROOT).splitlines():
            if re.search(r"bin/python tests/\S+\.py", recipe):
                require_options(shlex.split(recipe)[1:])
    elif kind == "pytest":
        arguments = words[words.index("pytest") + 1 :] if "pytest" in words else words[1:]
        run([sys.executable, "-m", "pytest", "--collect-only", "-q", *arguments], ROOT)
    elif kind == "source":
        require_options(words[1:])


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


def run_page(page, folder, names=None, *, skipped=()):
    """Runs the examples of a page but for those whose first line is in ``skipped``; returns the last namespace."""
    page_blocks = [block for block in blocks(page) if block.language in ("python", "console")]
    for name in ("models", "docs", "tests"):
        (folder / name).symlink_to(ROOT / name)
    text = "\n".join(block.text for block in page_blocks)
    for name, make in GIVEN.items():
        if re.search(rf"(?<![\w.-]){re.escape(name)}(?![\w-])", text):
            make(folder / name)
    namespace = {"__name__": "page", **(names or {})}
    os.chdir(folder)
    for block in page_blocks:
        if block.text.splitlines()[0] in skipped:
            continue
        for name in block.given:
            GIVEN[name](folder / name)
        if block.language == "python":
            exec(compile(block.text, f"{page}:{block.line}", "exec"), namespace)  # noqa: S102 - the page's own
        else:
            for command in commands(block.text):
                try_command(command, folder)
    return namespace


NETWORK = """<ir_version: 8, opset_import: ["" : 17]>
forward (float[N,3,8,8] x, int64[N] labels) => ({outputs}) {{
  c = Conv <pads = [1,1,1,1]> (x, conv_weight)
  y, running_mean_new, running_var_new = BatchNormalization <training_mode = {training}>
    (c, scale, bias, running_mean, running_var)
  z = Relu (y)
  m = GlobalAveragePool (z)
  f = Flatten (m)
  logits = Gemm (f, fc_weight, fc_bias)
  {loss}
}}"""
WEIGHTS = {
    "conv_weight": (4, 3, 3, 3), "scale": (4,), "bias": (4,), "running_mean": (4,), "running_var": (4,),
    "fc_weight": (4, 3), "fc_bias": (3,),
}  # fmt: skip


def network(path, *, with_loss=True):
    """A convolution, a batch norm in training mode, and a classifier of three classes."""
    statistics = "float[4] running_mean_new, float[4] running_var_new"
    text = NETWORK.format(
        outputs=f"float loss, float[N,3] logits, {statistics}" if with_loss else "float[N,3] logits",
        loss="loss = SoftmaxCrossEntropyLoss (logits, labels)" if with_loss else "",
        training=int(with_loss),
    )
    if not with_loss:
        text = text.replace(", int64[N] labels", "").replace("y, running_mean_new, running_var_new", "y")
    model = onnx.parser.parse_model(text)
    model.graph.node[1].name = "layer1.bn"
    random = np.random.default_rng(0)
    for name, shape in WEIGHTS.items():
        value = np.ones(shape) if name in ("scale", "running_var") else random.standard_normal(shape) * 0.3
        model.graph.initializer.append(onnx.numpy_helper.from_array(value.astype(np.float32), name))
    onnx.checker.check_model(model)
    onnx.save(model, path)


def training_graph(path):
    """A training graph in ONNX Runtime's dialect."""
    import bngrad

    network(path)
    bngrad.save(bngrad.differentiate(path, target="ort"), path)


def training_step(path):
    """A training step of the network."""
    import bngrad

    network(path)
    bngrad.training_step(path).save(path)


def samples(path):
    """Data of the network."""
    random = np.random.default_rng(1)
    x = random.standard_normal((64, 3, 8, 8)).astype(np.float32)
    np.savez(path, x=x, labels=random.integers(0, 3, 64))


def trained(path):
    """Weights and running statistics of the network, trained."""
    np.savez(path, **{name: np.ones(shape, np.float32) for name, shape in WEIGHTS.items()})


GIVEN = {
    "model.onnx": network,
    "forward.onnx": network,
    "classifier.onnx": lambda path: network(path, with_loss=False),
    "class_weights.npy": lambda path: np.save(path, np.ones(3, np.float32)),
    "training_model.onnx": training_graph,
    "step.onnx": training_step,
    "train.npz": samples,
    "test.npz": samples,
    "trained.npz": trained,
}


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("page", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="?")
    given = parser.parse_args()
    module = importlib.import_module(given.names) if given.names else None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporters' own
        run_page(given.page.resolve(), given.folder, vars(module) if module else None)
