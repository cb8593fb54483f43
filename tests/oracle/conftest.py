"""The oracle's environment, in the user's cache or BNGRAD_ORACLE_DIR, and a training graph from it."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from bngrad import oracle as public
from oracle_cases import CNN, CNN_WEIGHTS, parse


@pytest.fixture(scope="session")
def environment():
    return public.ensure()


@pytest.fixture(scope="session")
def training(oracle):
    """The training graph of CNN."""
    return ir.to_proto(oracle.build_gradient(parse(CNN), "loss", CNN_WEIGHTS).model)
