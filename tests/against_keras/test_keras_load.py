"""Which variable of a model has the weights of which path; and what is said where Keras is missing."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

import bngrad
import bngrad.keras
from bngrad.keras.load import _matched

CASES = {
    "the-same": (["m/a/kernel"], ["m/a/kernel", "m/b/kernel"], {"m/a/kernel": "m/a/kernel"}),
    "saved-and-loaded": (
        ["m/a/kernel", "m/b/kernel"],
        ["a/kernel", "b/kernel"],
        {"m/a/kernel": "a/kernel", "m/b/kernel": "b/kernel"},
    ),
    "the-other-way": (["a/kernel"], ["m/a/kernel", "m/b/kernel"], {"a/kernel": "m/a/kernel"}),
    "a-part-of-a-name": (["xa/kernel"], ["a/kernel"], {}),
    "ambiguous-variables": (["kernel"], ["a/kernel", "b/kernel"], {}),
    "ambiguous-paths": (["m/a/kernel", "n/a/kernel"], ["a/kernel"], {}),
    "one-of-two-is-exact": (["a/kernel", "m/a/kernel"], ["a/kernel"], {"a/kernel": "a/kernel"}),
    "another": (["a/kernel"], ["a/bias"], {}),
}


@pytest.mark.parametrize("case", CASES)
def test_variables_by_path(case):
    paths, variables, want = CASES[case]
    matches = _matched(paths, [SimpleNamespace(path=path) for path in variables])
    assert {path: variable.path for path, variable in matches.items()} == want


@pytest.mark.skipif(importlib.util.find_spec("keras") is not None, reason="Keras is installed")
def test_without_keras():
    for call in (lambda: bngrad.keras.export(None, None, ()), lambda: bngrad.keras.load_into(None, {})):
        with pytest.raises(bngrad.InputError, match=r"keras cannot be imported .*pip install 'bngrad\[keras\]'"):
            call()
