"""`bngrad.validate`: `bngrad.validation.validate.validate`, which also issues its warnings as Python warnings."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, ParamSpec

from bngrad.errors import warn
from bngrad.validation.validate import validate as _validate

if TYPE_CHECKING:
    from collections.abc import Callable

    from bngrad.validation.report import Report

P = ParamSpec("P")


def _warning(function: Callable[P, Report]) -> Callable[P, Report]:
    @wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> Report:
        report = function(*args, **kwargs)
        warn(report.warnings)
        return report

    return call


validate = _warning(_validate)
