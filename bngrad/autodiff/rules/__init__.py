"""The gradient rules: each module registers those of some ops, with `bngrad.autodiff.rule.gradient`.

A new module is imported here without being named. `tests/autodiff/test_schema_history.py` compares the versions,
attributes and inputs of each rule with onnx's definitions of the op. Other ops of onnx are refused, for the reason
in `without_rule.py`.
"""

from importlib import import_module
from pkgutil import iter_modules

from bngrad.autodiff.rule import RULES

__all__ = ["RULES"]

for _module in iter_modules(__path__, f"{__name__}."):
    import_module(_module.name)
