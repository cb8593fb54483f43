"""Every loss function and optimizer has its names on the command line, in Python and in the documentation."""

from __future__ import annotations

from dataclasses import fields

import pytest

import bngrad
from bngrad.cli import cli
from bngrad.training.loss_functions import LOSS_FUNCTIONS
from bngrad.training.optimizers import OPTIMIZERS
from test_docs import DOCS

METHODS = {**LOSS_FUNCTIONS, **OPTIMIZERS}
TABLES = {"guides/losses.md": LOSS_FUNCTIONS, "reference/training-step.md": OPTIMIZERS}


def parameters(command):
    return {option.name: option for option in cli.commands[command].params}


def test_all_names_differ():
    assert len(METHODS) == len(LOSS_FUNCTIONS) + len(OPTIMIZERS)


@pytest.mark.parametrize("name", METHODS)
def test_python_has_the_class_under_its_own_name(name):
    kind = METHODS[name]
    assert kind.name == name
    assert getattr(bngrad, kind.__name__) is kind
    assert kind.__name__ in bngrad.__all__
    documented = (DOCS / "reference" / "python-api.md").read_text(encoding="utf-8")
    assert f'\n| `bngrad.{kind.__name__}` | `"{name}"` |' in documented


@pytest.mark.parametrize("command", ["step", "differentiate", "validate"])
def test_commands_take_every_loss_function(command):
    options = parameters(command)
    assert list(options["loss_fn"].type.choices) == list(LOSS_FUNCTIONS)
    assert {one.name for kind in LOSS_FUNCTIONS.values() for one in fields(kind)} <= set(options)


def test_step_takes_every_optimizer():
    options = parameters("step")
    assert list(options["optimizer"].type.choices) == list(OPTIMIZERS)
    assert {one.name for kind in OPTIMIZERS.values() for one in fields(kind)} <= set(options)


@pytest.mark.parametrize("name", METHODS)
def test_the_help_of_each_option_names_those_that_have_it(name):
    for one in fields(METHODS[name]):
        option = parameters("step")[one.name]
        assert option.help
        if one.name not in ("reduction", "weight_decay"):  # which all have
            assert name in option.help, one.name


@pytest.mark.parametrize("page", TABLES)
def test_pages_have_a_row_for_each(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [name for name in TABLES[page] if f"\n| `{name}` | " not in text] == []
