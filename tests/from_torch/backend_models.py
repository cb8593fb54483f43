"""onnx's own backend models, validated against PyTorch: python tests/from_torch/backend_models.py [--every N].

It prints the number of each outcome. The loss, the inputs and the differentiated values are those of
`gradient_fuzz.backend_models`; inputs without a gradient are left out.
"""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import bngrad  # noqa: E402
from gradient_fuzz.backend_models import NOT_TRIED, backend_tests, case_of  # noqa: E402
from gradient_fuzz.cases import Case  # noqa: E402

AGREES, IN_FLOAT64 = "PyTorch agrees", "PyTorch agrees in float64, and not on stock ONNX Runtime"
NO_NUMBER, NO_GRADIENT = "the loss is no number", "it has no gradient"
EXPECTED = (AGREES, IN_FLOAT64, NO_NUMBER, NO_GRADIENT, NOT_TRIED)


def end_of(test) -> str:
    """The outcome of a test of onnx."""
    warnings.simplefilter("ignore")
    try:
        case = case_of(test)
    except (TypeError, ValueError) as error:
        return f"{NOT_TRIED}{type(error).__name__}"
    if not isinstance(case, Case):
        return NOT_TRIED + case
    wrt = [name for name in case.wrt if _has_gradient(case, name)]
    if not wrt:
        return NO_GRADIENT
    names = {value.name for value in case.model.graph.input}
    try:
        report = bngrad.validate(
            case.model,
            against="torch",
            implementation="function",
            loss="loss",
            wrt=wrt,
            inputs={name: array for name, array in case.feeds.items() if name in names},
        )
    except bngrad.BngradError as error:
        return f"refused: {error}"
    if report.checks[0].passed:
        return AGREES if report.passed else IN_FLOAT64
    return NO_NUMBER if "the loss is" in report.reason else report.reason


def _has_gradient(case: Case, name: str) -> bool:
    try:
        bngrad.differentiate(case.model, loss="loss", wrt=[name])
    except bngrad.BngradError:
        return False
    return True


@click.command()
@click.option("--every", default=1, help="Run only every n-th model.")
def main(every: int) -> None:
    """Print the number of each outcome, and the names of the models that do not agree."""
    ends = {test.name: end_of(test) for test in backend_tests()[::every]}
    for name, end in ends.items():
        if end == IN_FLOAT64 or not end.startswith(EXPECTED):
            click.echo(f"{name}: {end}", err=True)
    for end, count in Counter(ends.values()).most_common():
        click.echo(f"| {count} | {end} |")


if __name__ == "__main__":
    main()
