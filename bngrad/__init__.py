"""Batch-normalization training for ONNX Runtime.

`training_step` builds the training step of a forward model: forward, backward and optimizer in one graph.
`differentiate` builds the training graph alone, and `read_training_graph` reads what its inputs and outputs are;
`finalize` writes trained weights back into the forward model. `rewrite` converts an existing training graph: its
batch norms become ops of the domain ``bngrad``, which run on any ONNX Runtime. `validate` checks the gradients.
`session` creates an inference session with the ops registered; `register` and `get_library_path` are for sessions
that you create yourself. `inspect` lists a model's batch norms, and `save` writes a model.

Submodules are imported on first use, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bngrad.api import differentiate as differentiate
    from bngrad.api import finalize as finalize
    from bngrad.api import inspect as inspect
    from bngrad.api import rewrite as rewrite
    from bngrad.api import save as save
    from bngrad.api import training_step as training_step
    from bngrad.autodiff.metadata import TrainingGraph as TrainingGraph
    from bngrad.autodiff.metadata import read_training_graph as read_training_graph
    from bngrad.errors import BngradError as BngradError
    from bngrad.errors import BngradWarning as BngradWarning
    from bngrad.errors import DistributedError as DistributedError
    from bngrad.errors import InputError as InputError
    from bngrad.errors import LibraryError as LibraryError
    from bngrad.errors import ModelError as ModelError
    from bngrad.errors import OracleError as OracleError
    from bngrad.errors import TrainingError as TrainingError
    from bngrad.errors import UnsupportedNodeError as UnsupportedNodeError
    from bngrad.errors import VersionError as VersionError
    from bngrad.inspection.inspect import Inspection as Inspection
    from bngrad.opset.parameter_shape import derive_parameter_shape as derive_parameter_shape
    from bngrad.runtime.session import get_library_path as get_library_path
    from bngrad.runtime.session import register as register
    from bngrad.runtime.session import session as session
    from bngrad.training.loss_functions import L1 as L1
    from bngrad.training.loss_functions import MSE as MSE
    from bngrad.training.loss_functions import BCEWithLogits as BCEWithLogits
    from bngrad.training.loss_functions import CrossEntropy as CrossEntropy
    from bngrad.training.optimizers import SGD as SGD
    from bngrad.training.optimizers import Adam as Adam
    from bngrad.training.optimizers import AdamW as AdamW
    from bngrad.training.optimizers import ParameterGroup as ParameterGroup
    from bngrad.training.schedules import ConstantSchedule as ConstantSchedule
    from bngrad.training.schedules import CosineSchedule as CosineSchedule
    from bngrad.training.schedules import LinearSchedule as LinearSchedule
    from bngrad.training.schedules import StepSchedule as StepSchedule
    from bngrad.training.step_info import StepInfo as StepInfo
    from bngrad.training.trainer import Trainer as Trainer
    from bngrad.training.training_step import TrainingStep as TrainingStep
    from bngrad.training.training_step import read_training_step as read_training_step
    from bngrad.validation.api import validate as validate
    from bngrad.validation.report import Report as Report

__all__ = [
    "L1",
    "MSE",
    "SGD",
    "Adam",
    "AdamW",
    "BCEWithLogits",
    "BngradError",
    "BngradWarning",
    "ConstantSchedule",
    "CosineSchedule",
    "CrossEntropy",
    "DistributedError",
    "InputError",
    "Inspection",
    "LibraryError",
    "LinearSchedule",
    "ModelError",
    "OracleError",
    "ParameterGroup",
    "Report",
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
    "finalize",
    "get_library_path",
    "inspect",
    "read_training_graph",
    "read_training_step",
    "register",
    "rewrite",
    "save",
    "session",
    "training_step",
    "validate",
]

_MODULES = {
    "L1": "training.loss_functions",
    "MSE": "training.loss_functions",
    "SGD": "training.optimizers",
    "Adam": "training.optimizers",
    "AdamW": "training.optimizers",
    "BCEWithLogits": "training.loss_functions",
    "BngradError": "errors",
    "BngradWarning": "errors",
    "ConstantSchedule": "training.schedules",
    "CosineSchedule": "training.schedules",
    "CrossEntropy": "training.loss_functions",
    "DistributedError": "errors",
    "InputError": "errors",
    "Inspection": "inspection.inspect",
    "LibraryError": "errors",
    "LinearSchedule": "training.schedules",
    "ModelError": "errors",
    "OracleError": "errors",
    "ParameterGroup": "training.optimizers",
    "Report": "validation.report",
    "StepInfo": "training.step_info",
    "StepSchedule": "training.schedules",
    "Trainer": "training.trainer",
    "TrainingError": "errors",
    "TrainingGraph": "autodiff.metadata",
    "TrainingStep": "training.training_step",
    "UnsupportedNodeError": "errors",
    "VersionError": "errors",
    "derive_parameter_shape": "opset.parameter_shape",
    "differentiate": "api",
    "finalize": "api",
    "get_library_path": "runtime.session",
    "inspect": "api",
    "read_training_graph": "autodiff.metadata",
    "read_training_step": "training.training_step",
    "register": "runtime.session",
    "rewrite": "api",
    "save": "api",
    "session": "runtime.session",
    "training_step": "api",
    "validate": "validation.api",
}

try:
    __version__ = version("bngrad")
except PackageNotFoundError:  # running from a source tree that is not installed
    __version__ = "0+unknown"


def __getattr__(name: str) -> Any:  # noqa: ANN401 - the type that the protocol prescribes
    """Imports a public name on first use."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if _MODULES[name] != "errors":  # the errors stay importable, so that a VersionError can be caught
        import_module(f"{__name__}.runtime.versions").check()
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    """Returns all public names, including those not imported yet."""
    return sorted({*globals(), *__all__})
