"""Training on stock ONNX Runtime.

`training_step` builds the training step of a forward model: forward, backward and optimizer in one graph.
`differentiate` builds only the training graph, and `read_training_graph` reads the roles of its inputs and
outputs; `finalize` writes trained weights back into the forward model. `rewrite` converts an existing training
graph: its batch norms become ops of the domain ``bngrad``, which run on any ONNX Runtime. `validate` checks the
gradients. `session` creates an inference session with the ops registered; `register` and `get_library_path` are
for sessions that you create yourself. `inspect` lists a model's batch norms, and `save` writes a model.

Submodules are imported on first use, so that the command line starts fast.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from bngrad.training.history import register_pages
from bngrad.validation.references import register_reference

if TYPE_CHECKING:  # type checkers read only imports; without these, every name would be Any
    from bngrad.api import differentiate as differentiate
    from bngrad.api import edit_batch_norms as edit_batch_norms
    from bngrad.api import finalize as finalize
    from bngrad.api import inspect as inspect
    from bngrad.api import restore_batch_norms as restore_batch_norms
    from bngrad.api import rewrite as rewrite
    from bngrad.api import save as save
    from bngrad.api import training_step as training_step
    from bngrad.autodiff.backward import Backward as Backward
    from bngrad.autodiff.metadata import TrainingGraph as TrainingGraph
    from bngrad.autodiff.metadata import read_training_graph as read_training_graph
    from bngrad.autodiff.own_rules import gradient as gradient
    from bngrad.errors import BngradError as BngradError
    from bngrad.errors import BngradWarning as BngradWarning
    from bngrad.errors import DeviceError as DeviceError
    from bngrad.errors import DistributedError as DistributedError
    from bngrad.errors import InputError as InputError
    from bngrad.errors import LibraryError as LibraryError
    from bngrad.errors import ModelError as ModelError
    from bngrad.errors import OracleError as OracleError
    from bngrad.errors import TrainingError as TrainingError
    from bngrad.errors import UnsupportedNodeError as UnsupportedNodeError
    from bngrad.errors import VersionError as VersionError
    from bngrad.functional.api import hvp as hvp
    from bngrad.functional.api import jacobian as jacobian
    from bngrad.functional.api import jvp as jvp
    from bngrad.functional.api import vjp as vjp
    from bngrad.inspection.inspect import Inspection as Inspection
    from bngrad.opset.parameter_shape import derive_parameter_shape as derive_parameter_shape
    from bngrad.runtime.session import get_library_path as get_library_path
    from bngrad.runtime.session import register as register
    from bngrad.runtime.session import session as session
    from bngrad.training.loss.bce_with_logits import BCEWithLogits as BCEWithLogits
    from bngrad.training.loss.cross_entropy import CrossEntropy as CrossEntropy
    from bngrad.training.loss.huber import Huber as Huber
    from bngrad.training.loss.l1 import L1 as L1
    from bngrad.training.loss.mse import MSE as MSE
    from bngrad.training.loss.sigmoid_focal import SigmoidFocal as SigmoidFocal
    from bngrad.training.optim.adam import Adam as Adam
    from bngrad.training.optim.adamw import AdamW as AdamW
    from bngrad.training.optim.groups import ParameterGroup as ParameterGroup
    from bngrad.training.optim.lion import Lion as Lion
    from bngrad.training.optim.rmsprop import RMSprop as RMSprop
    from bngrad.training.optim.sgd import SGD as SGD
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

_NAMES = {
    "api": "differentiate edit_batch_norms finalize inspect restore_batch_norms rewrite save training_step",
    "autodiff.backward": "Backward",
    "autodiff.metadata": "TrainingGraph read_training_graph",
    "autodiff.own_rules": "gradient",
    "errors": "BngradError BngradWarning DeviceError DistributedError InputError LibraryError ModelError "
    "OracleError TrainingError UnsupportedNodeError VersionError",
    "functional.api": "hvp jacobian jvp vjp",
    "inspection.inspect": "Inspection",
    "opset.parameter_shape": "derive_parameter_shape",
    "runtime.session": "get_library_path register session",
    "training.loss.bce_with_logits": "BCEWithLogits",
    "training.loss.cross_entropy": "CrossEntropy",
    "training.loss.huber": "Huber",
    "training.loss.l1": "L1",
    "training.loss.mse": "MSE",
    "training.loss.sigmoid_focal": "SigmoidFocal",
    "training.optim.adam": "Adam",
    "training.optim.adamw": "AdamW",
    "training.optim.groups": "ParameterGroup",
    "training.optim.lion": "Lion",
    "training.optim.rmsprop": "RMSprop",
    "training.optim.sgd": "SGD",
    "training.schedules": "ConstantSchedule CosineSchedule LinearSchedule StepSchedule",
    "training.step_info": "StepInfo",
    "training.trainer": "Trainer",
    "training.training_step": "TrainingStep read_training_step",
    "validation.api": "validate",
    "validation.report": "Report",
}
"""The public names, by the module that has them."""

_MODULES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = ["__version__", *_MODULES]  # noqa: PLE0604 - all are strings, which ruff cannot see


def _autograd() -> type:
    """The class that runs models in PyTorch, for ``validate --against torch``."""
    from bngrad.torch.autograd.model import Autograd  # noqa: PLC0415 - PyTorch is optional

    return Autograd


register_reference("torch", _autograd)
register_pages(lambda: import_module(f"{__name__}.reports.html.training"))

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
