"""Fails a test in which types could not be inferred after a pass, though they could before it.

The pass then made a node that onnx does not accept, such as one of a domain that the model does not import. The
model keeps its types, so that what the next passes lack is seen nowhere else.
"""

from __future__ import annotations

import logging

import pytest


class _Records(logging.Handler):
    """The warnings of `InferTypesPass` in the test that runs."""

    def __init__(self):
        super().__init__(logging.WARNING)
        self.messages = []

    def emit(self, record):
        self.messages.append(record.getMessage())


_RECORDS = _Records()
logging.getLogger("bngrad.passes.prepare.infer_types").addHandler(_RECORDS)


@pytest.fixture
def expected_failures():
    """The messages of failed inferences that a test provokes."""
    return _RECORDS.messages


@pytest.fixture(autouse=True)
def no_failed_inference(request):
    """Fails a test with an inference that fails after another, unless it takes `expected_failures`."""
    _RECORDS.messages.clear()
    yield
    # Mutated models may contradict themselves in any way, also after a pass.
    is_expected = "expected_failures" in request.fixturenames or "fuzz" in request.path.parts
    if _RECORDS.messages and not is_expected:
        pytest.fail(f"types were inferred before a pass, but not after it: {_RECORDS.messages[0]}", pytrace=False)
