"""The functions of the ops: each module registers those of some, with `bngrad.torch.autograd.table.op`."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
