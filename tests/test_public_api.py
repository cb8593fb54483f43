"""Tests the public names, and that unused ones import nothing."""

from __future__ import annotations

import collections.abc
import dataclasses
import importlib
import inspect
import subprocess
import sys
import typing

import onnx
import pytest

import bngrad
from bngrad import options
from bngrad.training import batch_norm_options
from bngrad.training import options as training_options
from bngrad.validation import options as validation_options

NAMES = [
    "L1",
    "MSE",
    "SGD",
    "Adam",
    "AdamW",
    "BCEWithLogits",
    "Backward",
    "BngradError",
    "BngradWarning",
    "ConstantSchedule",
    "CosineSchedule",
    "CrossEntropy",
    "DeviceError",
    "DistributedError",
    "Huber",
    "InputError",
    "Inspection",
    "LibraryError",
    "LinearSchedule",
    "Lion",
    "ModelError",
    "OracleError",
    "ParameterGroup",
    "RMSprop",
    "Report",
    "SigmoidFocal",
    "StepInfo",
    "StepSchedule",
    "Trainer",
    "TrainingError",
    "TrainingGraph",
    "TrainingStep",
    "UnsupportedNodeError",
    "VersionError",
    "__version__",
    "derive_parameter_shape",
    "differentiate",
    "edit_batch_norms",
    "finalize",
    "get_library_path",
    "gradient",
    "hvp",
    "inspect",
    "jacobian",
    "jvp",
    "read_training_graph",
    "read_training_step",
    "register",
    "restore_batch_norms",
    "rewrite",
    "save",
    "session",
    "training_step",
    "validate",
    "vjp",
]
AUTO_OR_NAMES = collections.abc.Sequence[str] | typing.Literal["auto"]
HEAVY = ["onnx", "onnxruntime", "onnxscript", "onnx_ir", "numpy", "rich", "onnxruntime_extensions"]


def test_the_public_names():
    assert sorted(bngrad.__all__) == sorted(NAMES)
    for name in NAMES:
        assert getattr(bngrad, name) is not None


def test_every_public_name_has_a_docstring_and_is_the_one_of_its_module():
    for name, module in bngrad._MODULES.items():
        value = getattr(bngrad, name)
        assert value is getattr(importlib.import_module(f"bngrad.{module}"), name)
        assert value.__doc__


def test_a_name_that_does_not_exist():
    with pytest.raises(AttributeError, match="module 'bngrad' has no attribute 'rewrit'"):
        bngrad.rewrit  # noqa: B018


def test_every_error_is_public_and_a_bngrad_error():
    errors = importlib.import_module("bngrad.errors")
    kinds = [e for e in vars(errors).values() if isinstance(e, type) and e.__module__ == "bngrad.errors"]
    assert len(kinds) > 3
    assert {kind.__name__ for kind in kinds} <= set(bngrad.__all__)
    assert all(issubclass(kind, bngrad.BngradError) for kind in kinds if kind is not bngrad.BngradWarning)
    assert issubclass(bngrad.BngradWarning, UserWarning)
    assert issubclass(errors.UnsupportedNodeError, errors.ModelError)


def test_dir_has_what_was_not_used_yet():
    code = f"import bngrad; assert set({NAMES}) <= set(dir(bngrad)); assert 'validate' not in vars(bngrad)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr


OVERLOADED = [
    function
    for name in ("api", "autodiff.metadata")
    for function in vars(importlib.import_module(f"bngrad.{name}")).values()
    if callable(function) and typing.get_overloads(function)
]


@pytest.mark.parametrize("function", OVERLOADED, ids=lambda function: function.__name__)
def test_overloads_take_what_the_function_takes(function):
    """A call type-checks if and only if it runs."""
    want = inspect.signature(function, follow_wrapped=False).parameters
    for overload in typing.get_overloads(function):
        got = inspect.signature(overload).parameters
        keywords = got.get("options")
        if keywords is not None:  # as TypedDict; below are the tests that it has the names that the function takes
            assert keywords.annotation == function.__annotations__["options"]
            got = {name: parameter for name, parameter in got.items() if name != "options"}
            want = {name: parameter for name, parameter in want.items() if name in got}
        assert {name: parameter.kind for name, parameter in got.items()} == {
            name: parameter.kind for name, parameter in want.items()
        }
        for name, parameter in got.items():
            assert (parameter.default is parameter.empty) == (want[name].default is parameter.empty), name


@pytest.mark.parametrize("function", OVERLOADED, ids=lambda function: function.__name__)
def test_the_overload_of_protobuf_is_the_first(function):
    """Without protobuf's type stubs, ModelProto is Any, and a type checker uses the first overload."""
    first, second = typing.get_overloads(function)
    assert "ModelProto" in inspect.signature(first).parameters["model"].annotation
    assert inspect.signature(second).parameters["model"].annotation == "ir.Model"


KEYWORDS = {
    "rewrite": (options.RewriteKeywords, options.RewriteOptions),
    "differentiate": (training_options.DifferentiateKeywords, training_options.DifferentiateOptions),
    "edit_batch_norms": (batch_norm_options.BatchNormKeywords, batch_norm_options.BatchNormOptions),
    "restore_batch_norms": (batch_norm_options.RestoreKeywords, batch_norm_options.RestoreOptions),
    "training_step": (training_options.StepKeywords, training_options.StepOptions),
    "validate": (validation_options.ValidateKeywords, validation_options.ValidateOptions),
}


@pytest.mark.parametrize("name", KEYWORDS)
def test_a_type_checker_sees_the_options_that_a_function_takes(name):
    keywords, fields = KEYWORDS[name]
    types = {field.name: field.type for field in dataclasses.fields(fields)}
    hints = keywords.__annotations__
    assert hints.keys() == types.keys()
    for option, type_ in types.items():
        hint = hints[option].__forward_arg__ if isinstance(hints[option], typing.ForwardRef) else hints[option]
        assert hint == (AUTO_OR_NAMES if option == "training" else type_), option


@pytest.mark.parametrize("name", KEYWORDS)
def test_help_shows_the_options_and_their_defaults(name):
    shown = inspect.signature(getattr(bngrad, name)).parameters
    described = getattr(bngrad, name).__doc__
    if "those of `differentiate`" in described:
        described += bngrad.differentiate.__doc__
    for field in dataclasses.fields(KEYWORDS[name][1]):
        assert shown[field.name].kind is inspect.Parameter.KEYWORD_ONLY
        assert shown[field.name].default is field.default
        assert f"        {field.name}: " in described


def test_an_unknown_option_is_refused():
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'frosen'"):
        bngrad.differentiate(onnx.ModelProto(), frosen=["*"])


def test_some_functions_have_overloads():
    assert {function.__name__ for function in OVERLOADED} >= {"rewrite", "differentiate", "finalize"}


LIGHT = {
    "import": "import bngrad",
    "errors": "from bngrad import BngradError, ModelError, BngradWarning",
    "library-path": "import bngrad.errors, bngrad.cli",
    "help": "from bngrad.cli import run; assert run(['--help']) == 0",
    "help-of-a-command": "from bngrad.cli import run; assert run(['rewrite', '--help']) == 0",
    "help-of-validate": "from bngrad.cli import run; assert run(['validate', '--help']) == 0",
    "version": "from bngrad.cli import run; assert run(['--version']) == 0",
    "wrong-option": "from bngrad.cli import run; assert run(['inspect', '--frob']) == 2",
}


@pytest.mark.parametrize("case", LIGHT)
def test_nothing_heavy_is_imported_before_it_is_needed(case):
    code = f"import sys\n{LIGHT[case]}\nprint('imported', *(name for name in {HEAVY} if name in sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported"


def test_a_type_checker_sees_what_is_there_at_run_time():
    """The names under TYPE_CHECKING repeat the public names and must stay in sync."""
    import ast
    from pathlib import Path

    tree = ast.parse(Path(bngrad.__file__).read_text(encoding="utf-8"))
    seen = {
        alias.name: node.module.removeprefix("bngrad.")
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    assert seen == bngrad._MODULES
