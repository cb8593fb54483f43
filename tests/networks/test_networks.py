"""Tests the rows and the page of `make networks`; with PyTorch, torchvision and timm, also runs three rows."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from networks import report
from networks.rows import NETWORKS, WAYS, Network

DOCUMENT = Path(__file__).parents[2] / "docs" / "reference" / "networks.md"
VERSIONS = {"torch": "2.14", "timm": "1.0"}
RIGHT = {
    "outcome": "right",
    "parameters": 1234567,
    "worst": 1.26,
    "worst_of": "fc.weight_grad",
    "versions": VERSIONS,
}
REFUSED = {"outcome": "refused", "parameters": 1, "by": ["CTC"], "message": "CTC node 'a'\nhas | no `rule`"}
WRONG = {"outcome": "wrong", "parameters": 1, "worst": 123.0, "worst_of": "a_grad"}
INFINITE = WRONG | {"worst": "inf"}
FAILED = {"outcome": "failed", "by": ["RuntimeError"], "message": "x" * 1000}
CELLS = {
    "right": (RIGHT, "1.3"),
    "refused": (REFUSED, "refused: `CTC`"),
    "refused-without-op": (REFUSED | {"by": []}, "refused: see below"),
    "wrong": (WRONG, "**wrong**: 1.2e+02 of `a_grad`"),
    "infinite": (INFINITE, "**wrong**: inf of `a_grad`"),
    "failed": (FAILED, "failed"),
    "not-tried": ({"outcome": "not tried"}, "-"),
}


def table(*pairs):
    """The page of networks called n0, n1, ... with two results each."""
    networks = [Network(f"n{index}", "family", "modules", ()) for index in range(len(pairs))]
    results = [
        {"name": network.name, "way": way} | result
        for network, pair in zip(networks, pairs, strict=True)
        for way, result in zip(WAYS, pair, strict=True)
    ]
    return report.page(networks, results)


def test_there_are_networks_of_all_families():
    names = [network.name for network in NETWORKS]
    assert len(names) == len(set(names)) >= 80
    assert {network.source for network in NETWORKS} == {"torchvision", "timm", "modules"}
    assert len({network.family for network in NETWORKS}) >= 10


@pytest.mark.parametrize(("result", "cell"), CELLS.values(), ids=CELLS)
def test_a_cell_shows_the_outcome(result, cell):
    assert report.cell(result) == cell


@pytest.mark.parametrize(
    ("result", "good"),
    [(RIGHT, True), (REFUSED, True), (REFUSED | {"by": []}, False), (WRONG, False), (FAILED, False)],
    ids=["right", "refused", "refused-without-op", "wrong", "failed"],
)
def test_only_what_is_right_or_names_an_op_is_good(result, good):
    assert report.is_good(result) == good


def test_the_page_counts_and_quotes():
    page = table((RIGHT, WRONG), (REFUSED, FAILED), ({"outcome": "not tried"},) * 2)
    assert "| bngrad.torch | 2 | 1 | 1 | 0 | 0 |" in page
    assert "| legacy | 2 | 0 | 0 | 1 | 1 |" in page
    assert "| `n0` | family | 1,234,567 | 1.3 | **wrong**: 1.2e+02 of `a_grad` |" in page
    assert "- `n1` by bngrad.torch: `CTC node 'a' has | no 'rule'`" in page
    assert "n2" not in page
    assert "torch 2.14, timm 1.0" in page
    assert max(map(len, page.splitlines())) < 250


def test_the_committed_page_has_no_wrong_network_and_enough_right_ones():
    rows = [
        line.split(" | ") for line in DOCUMENT.read_text(encoding="utf-8").splitlines() if line.startswith("| `")
    ]
    ours = [cells[3] for cells in rows]
    right = [cell for cell in ours if cell.replace(".", "").isdigit()]
    assert len(right) >= max(80, 0.95 * len(ours))
    assert all(cell in right or cell.startswith("refused: `") for cell in ours)


def test_refusals_name_ops():
    trial = pytest.importorskip("networks.trial", reason="needs PyTorch, torchvision and timm: make networks")
    assert trial.ops_of("A node 'x' cannot be differentiated (and 2 more: B, C)") == ["A", "B", "C"]
    assert trial.ops_of("PyTorch's exporter cannot write aten.x.default as ONNX; expected") == ["aten.x.default"]
    assert trial.ops_of("the module calls timm.f.Swish, a torch.autograd.Function") == ["timm.f.Swish"]
    traced = "torch.export cannot trace the module: "
    assert trial.ops_of(f"{traced}DynamicOutputShapeException: aten._ctc_loss.Tensor") == ["aten._ctc_loss.Tensor"]
    assert trial.ops_of(f"{traced}TypeError: x") == []


@pytest.mark.long
@pytest.mark.skipif(
    any(find_spec(name) is None for name in ("torch", "torchvision", "timm")),
    reason="needs PyTorch, torchvision and timm: make networks",
)
@pytest.mark.parametrize("way", WAYS)
def test_networks_are_right(way):
    names = ("mlp", "mobilenetv3_small_050", "shufflenet_v2_x0_5")
    command = [sys.executable, str(Path(__file__).parent / "trial.py")]
    lines = "".join(f"{name} {way}\n" for name in names)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=True)
    assert [json.loads(line)["outcome"] for line in done.stdout.splitlines()] == ["right"] * 3
