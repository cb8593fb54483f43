"""The gradient of every case: one test a case, which builds its models once and runs all checks on them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import pytest

from autodiff import ort_checks, sixteen_bits
from autodiff.cases import TABLES, cases_of, convolution, indexing, loss, recurrent, resampling
from autodiff.gradient_cases import every
from autodiff.gradient_checks import (
    CheckedCase,
    against_differences,
    against_oracle,
    against_oracle_on_stock,
    in_bfloat16,
    in_float16,
    loss_on_stock,
    on_stock,
    on_training_build,
)
from bngrad.autodiff.rules import RULES
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autodiff.gradient_cases import Case, Dims
    from autodiff.gradient_checks import Check

WITHOUT_CASE = {
    *(("", name) for name in ("Bernoulli", "DynamicQuantizeLinear", "RandomNormalLike", "RandomUniformLike")),
    *(BATCH_NORM_INTERNAL, (DOMAIN, "BatchNormalizationTraining")),
    *((DOMAIN, f"BatchNormalization{name}") for name in ("Grad", "ReluGrad", "Statistics")),
    (DOMAIN, "MaxPoolInputGrad"),
}
"""test_op_versions.py has the random ops, test_straight_through.py what differences do not show, tests/functional
the second derivatives; a batch norm in a case becomes one of the others."""

NEWEST = 20
"""The newest opset that all kernels of the training build are for."""
LOWERED_FOR_TRAINING_BUILD = [
    *(case for case in convolution.CASES if "transpose" in case.name),
    *(case for case in indexing.CASES if "slice" in case.name),
    *(case for case in loss.CASES if "of double" in case.name),
    *resampling.RESIZES,
]
"""Ops without a CPU kernel in the training build are lowered for it too."""


ON_ORACLE = [case for table in TABLES.values() for case in table if not case.oracle]
"""The cases of which ORT's builder is an oracle: `make test` lowers the graphs of every third."""
IN_16_BITS = list(sixteen_bits.SAMPLE)[::3]
"""The cases that `make test` also checks in 16 bits."""


@pytest.mark.parametrize("table", TABLES)
def test_every_case_has_a_name_of_its_own(table):
    assert [name for name, times in Counter(case.name for case in TABLES[table]).items() if times > 1] == []


@pytest.mark.parametrize("key", sorted(RULES.keys() - WITHOUT_CASE), ids=".".join)
def test_every_rule_has_a_case(key):
    domain, op_type = key
    assert cases_of(op_type, domain), f"add a case to tests/autodiff/cases for {op_type}"


def checks_of(case: Case) -> Iterator[tuple[Check, Dims]]:
    """The checks of a case, each with numbers for its dims."""
    for dims in case.dims:
        yield against_differences, dims
        yield on_stock, dims
        yield loss_on_stock, dims
    for dims in case.dims[-1:] if case.oracle else case.dims:
        yield against_oracle, dims
    if case in ON_ORACLE[::3]:
        yield against_oracle_on_stock, case.dims[-1]
    yield ort_checks.between_transposes, case.dims[0]
    batches = [dims for dims in case.dims if dims.get("N", 1) != 1]
    # The process ends in ONNX Runtime's kernels of LSTM and GRU.
    if batches and case not in recurrent.CASES:
        yield ort_checks.with_an_empty_batch, batches[0]
    if case in IN_16_BITS:
        yield sixteen_bits.SAMPLE[case], sixteen_bits.FLOAT16[case]
    if case in LOWERED_FOR_TRAINING_BUILD and case.opset <= NEWEST:
        yield on_training_build, case.dims[-1]


@every(**TABLES)
def test_gradients(case, oracle):
    checked = CheckedCase(case, oracle)
    for check, dims in checks_of(case):
        checked.run(check, dims)


@pytest.mark.long
@every(**{"on stock": ON_ORACLE})
def test_oracle_on_stock(case, oracle):
    checked = CheckedCase(case, oracle)
    for dims in case.dims:
        checked.run(against_oracle_on_stock, dims)


@pytest.mark.long
@every(**{"16 bits": list(sixteen_bits.FLOAT16)})
def test_gradients_in_16_bits(case):
    checked = CheckedCase(case)
    checked.run(in_float16, sixteen_bits.FLOAT16[case])
    if case in sixteen_bits.BFLOAT16:
        checked.run(in_bfloat16, sixteen_bits.FLOAT16[case])
