"""The gradient of every case, in all of its sizes.

Against central differences, on stock ONNX Runtime, and as ORT's builder and kernels have it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext

import pytest

from autodiff.cases import TABLES, cases_of, indexing, resampling, shape
from autodiff.gradient_cases import each
from autodiff.gradient_checks import check_against_differences, check_against_oracle, check_on_stock
from bngrad.autodiff.rules import RULES
from bngrad.errors import BngradError
from bngrad.opset.functions import DOMAIN
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL

WITHOUT_CASE = {
    *(("", f"{name}") for name in ("Bernoulli", "RandomNormalLike", "RandomUniformLike")),
    *(BATCH_NORM_INTERNAL, (DOMAIN, "BatchNormalizationTraining")),
}
"""test_op_versions.py has the random ops; a batch norm in a case becomes one of the others."""
# ORT's kernel of ResizeGrad is for CUDA alone; test_resampling_rules.py has what is done instead.
WITH_ORACLE = TABLES | {"resampling": resampling.PADS}
SHOWN_WRONG = {*indexing.CASES, *resampling.PADS, *shape.CASES}
"""Of these, the ones that give a reason against ORT's builder are run too: it must fail."""


@pytest.mark.parametrize("table", TABLES)
def test_every_case_has_a_name_of_its_own(table):
    assert [name for name, times in Counter(case.name for case in TABLES[table]).items() if times > 1] == []


@pytest.mark.parametrize("key", sorted(RULES.keys() - WITHOUT_CASE), ids=".".join)
def test_every_rule_has_a_case(key):
    domain, op_type = key
    assert cases_of(op_type, domain), f"add a case to tests/autodiff/cases for {op_type}"


@each(**TABLES)
def test_central_differences(case, dims):
    check_against_differences(case, dims)


@each(**TABLES)
def test_stock(case, dims):
    check_on_stock(case, dims)


@each(**WITH_ORACLE)
def test_oracle(case, dims, oracle):
    if case.oracle and case not in SHOWN_WRONG:
        pytest.skip(case.oracle)
    with pytest.raises((BngradError, AssertionError)) if case.oracle else nullcontext():
        check_against_oracle(case, dims, oracle)
