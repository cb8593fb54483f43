"""The page docs/reference/networks.md, from the results of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from networks.rows import Network

    Result = Mapping[str, Any]

OUTCOMES = ("right", "refused", "failed", "wrong")
MOST = 160
"""The length of a message in the page."""

TEXT = """\
# Networks

    make networks                                  # goes on where the last run ended, and writes this page
    make networks NETWORKS='resnet18 mlp'          # tries these networks again

Networks of torchvision and timm, and small ones of [tests/networks/modules](../../tests/networks/modules), with a
loss, in training mode, with random weights. Two ways from PyTorch are compared with PyTorch itself:

- `bngrad.torch`: `bngrad.torch.compare(module, loss_fn, example)`.
- legacy: `torch.onnx.export(dynamo=False, training=TrainingMode.PRESERVE, do_constant_folding=False)`, and
  `bngrad.differentiate` of that file.

The loss, every gradient and every new buffer of two steps are compared with PyTorch in float64. The number in the
table is the largest error of the training graph, in units of the error of PyTorch's own float32 for the same
tensor, which is taken to be at least 8 roundings. Up to 10 is right. A step with an error above that is repeated
from slightly different weights, up to four times, and the closest result counts: a unit at the kink of its ReLU
may be on either side by chance.

`bngrad.torch.compare` turns Dropout, stochastic depth and random draws off on both sides; for the legacy exporter
their probabilities are set to 0. timm's memory-efficient activations have a backward pass of their own, which
bngrad.torch refuses, so the networks are built with `timm.layers.set_exportable(True)`.
"""


def page(networks: Sequence[Network], results: Iterable[Result]) -> str:
    """The whole page; networks that were not tried are left out."""
    by_way: dict[str, dict[str, Result]] = {}
    for result in results:
        by_way.setdefault(result["way"], {})[result["name"]] = result
    shown = [network for network in networks if any(is_tried(named[network.name]) for named in by_way.values())]
    tried = [
        named[network.name] for named in by_way.values() for network in shown if is_tried(named[network.name])
    ]
    parts = [
        TEXT,
        _versions(tried),
        _table(["way", "networks", *OUTCOMES], [_counts(*pair) for pair in by_way.items()]),
    ]
    rows = []
    for network in shown:
        row_results = [by_way[way][network.name] for way in by_way]
        parameters = next(result["parameters"] for result in row_results if "parameters" in result)
        rows.append([f"`{network.name}`", network.family, f"{parameters:,}", *map(cell, row_results)])
    parts.append(_table(["network", "family", "parameters", *by_way], rows))
    messages = [
        f"- `{result['name']}` by {result['way']}: {_quoted(result['message'])}"
        for result in tried
        if result.get("message")
    ]
    if messages:
        parts.append("What was refused or failed, and the messages:\n\n" + "\n".join(messages) + "\n")
    return "\n".join(parts)


def is_tried(result: Result) -> bool:
    return result["outcome"] in OUTCOMES


def is_good(result: Result) -> bool:
    """Returns whether a network is right, or refused with the names of the ops that have no rule."""
    return result["outcome"] == "right" or (result["outcome"] == "refused" and bool(result["by"]))


def cell(result: Result) -> str:
    """The outcome in a cell of the table."""
    outcome = result["outcome"]
    if outcome == "right":
        return f"{result['worst']:.1f}"
    if outcome == "refused":
        return f"refused: {', '.join(f'`{op}`' for op in result['by']) or 'see below'}"
    if outcome == "wrong":
        worst = result["worst"]
        return f"**wrong**: {worst if isinstance(worst, str) else f'{worst:.1e}'} of `{result['worst_of']}`"
    return "failed" if outcome == "failed" else "-"


def log_line(result: Result) -> str:
    """The outcome in a line of the log."""
    return (
        f"{cell(result)} {result.get('seconds', '')} {_quoted(result['message']) if 'message' in result else ''}"
    )


def _versions(tried: Sequence[Result]) -> str:
    by_package: dict[str, set[str]] = {}
    for result in tried:
        for package, version in result.get("versions", {}).items():
            by_package.setdefault(package, set()).add(version)
    parts = (f"{package} {' and '.join(sorted(versions))}" for package, versions in by_package.items())
    return ", ".join(parts) + ".\n"


def _counts(way: str, by_name: Mapping[str, Result]) -> list[str]:
    tried = [result["outcome"] for result in by_name.values() if is_tried(result)]
    return [way, str(len(tried)), *(str(tried.count(outcome)) for outcome in OUTCOMES)]


def _quoted(message: str) -> str:
    """A message as code, in one line."""
    text = " ".join(message.split())
    return f"`{text[:MOST].replace('`', chr(39))}{'...' if len(text) > MOST else ''}`"


def _table(heading: list[str], rows: list[list[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines) + "\n"
