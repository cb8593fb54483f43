"""`bngrad.torch.explain`, and docs/guides/pytorch-refusals.md, which has modules that are accepted instead."""

from __future__ import annotations

import copy
import warnings

import pytest

torch = pytest.importorskip("torch", reason="needs PyTorch: make test-torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402

import bngrad.torch  # noqa: E402
from bngrad.errors import InputError  # noqa: E402
from page_examples import ROOT, blocks, is_printed  # noqa: E402

PAGE = ROOT / "docs" / "guides" / "pytorch-refusals.md"


def sections():
    """The title of each section, and its blocks: a module, the refusals, and an accepted module."""
    lines = PAGE.read_text().splitlines()
    titles = [(number, line[3:]) for number, line in enumerate(lines, 1) if line.startswith("## ")]
    by_title = {}
    for block in blocks(PAGE):
        title = next((title for number, title in reversed(titles) if number < block.line), None)
        by_title.setdefault(title, []).append(block)
    return by_title


@pytest.fixture(scope="module")
def page():
    """The reports of each section, of its first module and of its last."""
    by_title = sections()
    (setup,) = by_title.pop(None)
    names = {"__name__": "page"}
    run(setup, names)
    reports = {}
    for title, (before, _, after) in by_title.items():
        torch.manual_seed(1)
        reports[title] = []
        for block in (before, after):
            run(block, names)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # PyTorch's own
                reports[title].append(
                    bngrad.torch.explain(names["Net"](), nn.CrossEntropyLoss(), names["example"])
                )
    return reports


def run(block, names):
    exec(compile("\n" * (block.line - 1) + block.text, str(PAGE), "exec"), names)  # noqa: S102 - the page's own


@pytest.mark.parametrize("title", [title for title in sections() if title is not None])
def test_each_section_of_the_page(page, title):
    refused, taken = page[title]
    _, printed, _ = sections()[title]
    assert not refused.passed
    assert is_printed(printed.text, "\n".join(f"refused: {blocker}" for blocker in refused.blockers)), str(refused)
    assert taken.passed, str(taken)


class Many(nn.Module):
    """A hook, a Function and two ops that ONNX lacks; a branch on a size."""

    def __init__(self):
        super().__init__()
        self.fc, self.bn = nn.Linear(6, 3), nn.BatchNorm1d(3)
        self.fc.weight.register_hook(lambda gradient: gradient)

    def forward(self, x):
        y = self.bn(self.fc(x))
        y.register_hook(lambda gradient: gradient)
        y = y * torch.special.i0(y) + torch.linalg.matrix_exp(y[:3])[0]
        return y * torch.fft.rfft(y).abs().sum() if x.shape[0] > 5 else y


EXAMPLE = torch.randn(8, 6, generator=torch.Generator().manual_seed(1)), torch.arange(8) % 3


def test_everything_is_listed():
    module = Many()
    before = copy.deepcopy(module.state_dict())
    report = bngrad.torch.explain(module, functional.cross_entropy, EXAMPLE)
    for text in ("'fc.weight' has a gradient hook", "calls Tensor.register_hook", "i0", "matrix_exp"):
        assert sum(text in line for line in report.blockers) == 1, (text, str(report))
    assert {"N > 5", "N != 1"} < set(report.sizes)
    assert all("\n" not in line for line in report.blockers)
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_nothing_is_refused():
    net = nn.Sequential(nn.Linear(6, 3), nn.BatchNorm1d(3)).eval()
    report = bngrad.torch.explain(net, functional.cross_entropy, EXAMPLE)
    assert report.passed
    assert str(report).splitlines()[0] == "nothing is refused"
    assert "call module.train()" in report.warnings[0]
    (line,) = bngrad.torch.explain(nn.Linear(6, 3), functional.cross_entropy, EXAMPLE[0]).blockers
    assert line.startswith("example is a Tensor; expected (inputs, *targets)")


@pytest.mark.parametrize(
    "take", [lambda program: program, lambda program: program.module()], ids=["program", "module"]
)
def test_exported_programs_are_refused(take):
    program = torch.export.export(nn.Linear(6, 3), (EXAMPLE[0],))
    with pytest.raises(InputError, match=r"module is an exported program, which has no training mode"):
        bngrad.torch.export(take(program), functional.cross_entropy, EXAMPLE)
