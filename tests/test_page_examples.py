"""The examples of the documentation run: each command and Python block, here or in a test that is named here."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from page_examples import ROOT, blocks, commands, how, is_printed, run_page
from test_docs import PAGES, page_id

PAGES_ELSEWHERE = {
    "docs/guides/pytorch.md": "from_torch/test_pytorch_guide.py",
    "docs/guides/pytorch-refusals.md": "from_torch/test_explain.py",
    "docs/guides/several-networks.md": "from_torch/test_several_networks.py",
    "docs/guides/tensorflow.md": "against_keras/test_tensorflow_guide.py",
    "docs/guides/jax.md": "examples/test_jax.py",
    "docs/guides/distributed.md": "distributed/test_distributed_guide.py",
    "docs/guides/gpu.md": "gpu/check_training.py",
    "docs/reference/commands.md": "cli/test_help.py",
}
"""Pages that need other packages, processes or a GPU, or that are made of help texts, and what runs them."""

COMMANDS_ELSEWHERE = {
    "pip install": "test_packaging.py",
    "python3 -m venv": "test_packaging.py",
    "pip download": "ci_recipes/test_offline.py",
    "export PIP_NO_INDEX=1": "ci_recipes/test_offline.py",
    "bngrad oracle": "oracle/test_oracle_environment.py",
    "bngrad library-path": "cli/test_cli.py",
    "bngrad completion": "cli/test_help.py",
    "echo 'eval": "cli/test_help.py",
    "cmake": "examples/test_cpp.py",
    "build/cpp/train": "examples/test_cpp.py",
    "mpiexec": "distributed/test_distributed_guide.py",
    "npm": "web/test_javascript_guide.py",
    "python docs/examples/prepare.py": "web/conftest.py",
    "python -m http.server": "web/test_browser.py",
}
"""Beginnings of commands that install, need the network or another program, and the tests that run them."""

QUOTED = {
    "docs/contributing/gradient-rule.md": [
        "bngrad/autodiff/rules/activation.py",
        "tests/autodiff/cases/activation.py",
        "bngrad/passes/lower/activation.py",
    ],
    "docs/contributing/options.md": ["bngrad/training/options.py"],
}
"""Pages whose Python blocks quote files: each block is in one of them."""

SKIPPED = {
    "docs/contributing/op.md": {
        "def _rewrite(node: ForeignNode, context: Context) -> None:": "passes/test_import_directml.py",
    },
    "docs/guides/federated.md": {"class BatchNormAverage(FedAvg):": "examples/test_flower.py"},
    "docs/reference/dialects/tensorflow.md": {
        'ops = {name: "ai.onnx.converters.tensorflow" for name in ("FusedBatchNormV3", "FusedBatchNormGradV3")}': (
            "against_tensorflow/record.py"
        ),
    },
}
"""Python blocks by their first line, and what has the same call."""


def batches(**shapes):
    """Batches of random data, of the network of `page_examples` or of the digits."""
    random = np.random.default_rng(0)
    data = {name: random.standard_normal((16, *shape)).astype(np.float32) for name, shape in shapes.items()}
    return [(*data.values(), random.integers(0, 3, 16))] * 3


GIVEN_NAMES = {
    "docs/reference/python-api.md": {"batches": batches(x=(1, 4, 4))},
    "docs/reference/training-step.md": {"batches": batches(images=(1, 8, 8))},
    "docs/guides/onnxruntime-training.md": {"batches": batches(features=(1, 4, 4))},
}
"""Names that a page takes as given."""


def examples(page):
    return [block for block in blocks(page) if block.language in ("python", "console")]


HERE = [
    page
    for page in PAGES
    if examples(page) and page_id(page) not in PAGES_ELSEWHERE and page_id(page) not in QUOTED
]


WHOLE = ("README.md",)
"""Pages of which `make test` runs all examples; of the others the first two."""

LONG = ("docs/guides/cpp-csharp.md", "docs/index.md")
"""Pages of which `make test` runs none: the README and the guide of JavaScript begin with the same commands."""


def run_examples(page, folder, monkeypatch, count=None):
    monkeypatch.chdir(folder)
    run_page(page, folder, GIVEN_NAMES.get(page_id(page)), skipped=SKIPPED.get(page_id(page), ()), count=count)


@pytest.mark.parametrize("page", [page for page in HERE if page_id(page) not in LONG], ids=page_id)
def test_examples_run(page, tmp_path, monkeypatch):
    run_examples(page, tmp_path, monkeypatch, count=None if page_id(page) in WHOLE else 2)


@pytest.mark.long
@pytest.mark.parametrize("page", [page for page in HERE if page_id(page) not in WHOLE], ids=page_id)
def test_all_examples_run(page, tmp_path, monkeypatch):
    run_examples(page, tmp_path, monkeypatch)


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_every_command_is_run_somewhere(page):
    for block in examples(page):
        for command in commands(block.text):
            assert how(command.line) != "elsewhere" or command.line.startswith(tuple(COMMANDS_ELSEWHERE)), command


def test_the_site_begins_with_the_commands_of_the_readme():
    readme, index = (examples(ROOT / name)[0] for name in ("README.md", "docs/index.md"))
    assert readme.language == "console"
    assert readme.text == index.text


@pytest.mark.parametrize("name", QUOTED)
def test_quotes_are_current(name):
    sources = [(ROOT / source).read_text(encoding="utf-8") for source in QUOTED[name]]
    for block in blocks(ROOT / name):
        if block.language == "python":
            text = re.sub(r"^", r"(?: {4})?", re.escape(block.text.rstrip()), flags=re.MULTILINE)
            assert any(re.search(text, source) for source in sources), block.text


def test_no_entry_of_a_table_is_stale():
    lines = [command.line for page in PAGES for block in examples(page) for command in commands(block.text)]
    lines = [line for line in lines if how(line) == "elsewhere"]
    assert [start for start in COMMANDS_ELSEWHERE if not any(line.startswith(start) for line in lines)] == []
    for name, entries in SKIPPED.items():
        assert set(entries) <= {block.text.splitlines()[0] for block in examples(ROOT / name)}
    for table in (PAGES_ELSEWHERE, COMMANDS_ELSEWHERE, *SKIPPED.values()):
        for test in table.values():
            assert (Path(__file__).parent / test).exists(), test


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("a b\nc", "a b c\n", True),
        ("a ... c", "a b b\nb c\n", True),
        ("...\nlast", "first\nlast\n", True),
        ("a...", "a", True),
        ("a\n...", "b\na\n", False),
        ("a", "a\nb\n", False),
        ("0.5", "0x5", False),
    ],
)
def test_what_a_page_shows(expected, printed, same):
    assert is_printed(expected, printed) is same


@pytest.mark.parametrize(
    ("expected", "printed", "same"),
    [
        ("epoch 1/5: loss 0.959, 56.82%", "epoch 1/5: loss 1, 7.5%", True),
        ("1,438 samples", "9 samples", True),
        ("epoch 1/5: loss 0.959", "epoch 1/5: gain 0.959", False),
        ("loss 0.959", "loss nan", False),
        ("loss 0.9...", "loss 1.25", True),
    ],
)
def test_numbers_that_vary(expected, printed, same):
    assert is_printed(expected, printed, numbers_vary=True) is same


def test_a_page_with_a_wrong_example_fails(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```console\n$ bngrad inspect model.onnx\nbatch norms: 2\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match="batch norms: 1"):
        run_page(page, tmp_path)
