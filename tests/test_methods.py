"""Every loss function and optimizer has its names on the command line, in Python and in the documentation."""

from __future__ import annotations

from dataclasses import fields

import click
import pytest

import bngrad
from bngrad.cli import cli
from bngrad.training.loss_functions import LOSS_FUNCTIONS
from bngrad.training.optimizers import OPTIMIZERS
from test_docs import DOCS

METHODS = {**LOSS_FUNCTIONS, **OPTIMIZERS}
TABLES = {"guides/losses.md": LOSS_FUNCTIONS, "reference/training-step.md": OPTIMIZERS}


def parameters(command):
    """The options of a command by their names on the command line."""
    options = [option for option in cli.commands[command].params if isinstance(option, click.Option)]
    names = [option.opts[-1] for option in options]
    assert len(set(names)) == len(names)
    return dict(zip(names, options, strict=True))


def names_of(kind):
    """The options of a loss function or an optimizer on the command line."""
    return [option.metadata.get("command_line") or "--" + option.name.replace("_", "-") for option in fields(kind)]


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
    assert list(options["--loss-fn"].type.choices) == list(LOSS_FUNCTIONS)
    assert {name for kind in LOSS_FUNCTIONS.values() for name in names_of(kind)} <= set(options)


def test_step_takes_every_optimizer():
    options = parameters("step")
    assert list(options["--optimizer"].type.choices) == list(OPTIMIZERS)
    assert {name for kind in OPTIMIZERS.values() for name in names_of(kind)} <= set(options)


@pytest.mark.parametrize("name", METHODS)
def test_the_help_of_each_option_names_those_that_have_it(name):
    for option in names_of(METHODS[name]):
        text = parameters("step")[option].help
        assert text
        if option not in ("--reduction", "--weight-decay"):  # which all have
            assert name in text, option


@pytest.mark.parametrize("page", TABLES)
def test_pages_have_a_row_for_each(page):
    text = (DOCS / page).read_text(encoding="utf-8")
    assert [name for name in TABLES[page] if f"\n| `{name}` | " not in text] == []
