"""The training ops of ONNX Runtime in standard ONNX, and AdamW as AdamUpdate of ``bngrad``.

Each module registers the lowerings of some ops, with `bngrad.passes.lower.lowering.lowering`; a new module is
imported here without being named. A lowering gets a `Site`, inserts nodes that compute the same as its node, and
returns the value that replaces each output. `LowerTrainingPass` applies them to a model.
"""

from importlib import import_module
from pkgutil import iter_modules

from bngrad.passes.lower.lowering import LOWERINGS

__all__ = ["LOWERINGS"]

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
