"""Training PyTorch modules on ONNX Runtime.

::

    import bngrad
    import bngrad.torch

    step = bngrad.torch.training_step(module, loss_fn, (images, labels), optimizer="adamw")
    trainer = bngrad.Trainer(step, learning_rate=1e-3)
    for images, labels in loader:
        loss = trainer.step(x=images, target=labels)
    bngrad.torch.load_into(module, trainer)

It needs PyTorch 2.9 or newer: ``pip install 'bngrad[torch]'``. Nothing else in this package imports torch.
"""

from importlib.util import find_spec

from bngrad.errors import VersionError

if find_spec("torch") is None:
    raise VersionError("bngrad.torch needs PyTorch 2.9 or newer; install it: pip install 'bngrad[torch]'")

from bngrad.torch.explain import explain
from bngrad.torch.joint.import_joint import import_joint
from bngrad.torch.load import load_into
from bngrad.torch.state_tensors import state_tensors
from bngrad.torch.step import compare, differentiate, export, training_step

__all__ = [
    "compare",
    "differentiate",
    "explain",
    "export",
    "import_joint",
    "load_into",
    "state_tensors",
    "training_step",
]
