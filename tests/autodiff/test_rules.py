"""The gradient of every case, in all of its sizes.

Against central differences, on stock ONNX Runtime, and as ORT's builder and kernels have it.
"""

from __future__ import annotations

from collections import Counter
from contextlib import nullcontext
from importlib import import_module
from pkgutil import iter_modules

import pytest

from autodiff import cases
from autodiff.cases import indexing, resampling, shape
from autodiff.gradient_cases import each
from autodiff.gradient_checks import check_against_differences, check_against_oracle, check_on_stock
from bngrad.errors import BngradError

TABLES = {
    module.name: import_module(f"{cases.__name__}.{module.name}").CASES for module in iter_modules(cases.__path__)
}
# ORT's kernel of ResizeGrad is for CUDA alone; test_resampling_rules.py has what is done instead.
WITH_ORACLE = TABLES | {"resampling": resampling.PADS}
SHOWN_WRONG = {*indexing.CASES, *resampling.PADS, *shape.CASES}
"""Of these, the ones that give a reason against ORT's builder are run too: it must fail."""


@pytest.mark.parametrize("table", TABLES)
def test_every_case_has_a_name_of_its_own(table):
    assert [name for name, times in Counter(case.name for case in TABLES[table]).items() if times > 1] == []


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
