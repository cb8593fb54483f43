"""One oracle for all tests, in the user's own environment (or BNGRAD_ORACLE_DIR's), which is made if need be."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bngrad import oracle as public
from oracle_cases import CNN, CNN_WEIGHTS, parse


@pytest.fixture(scope="session")
def environment():
    return public.ensure()


@pytest.fixture(scope="session")
def oracle(environment):
    with public.Oracle(python=environment.python) as opened:
        yield opened


@pytest.fixture(scope="session")
def training(oracle):
    """The training graph of CNN."""
    return ir.to_proto(oracle.build_gradient(parse(CNN), "loss", CNN_WEIGHTS).model)
