"""The cases of every gradient rule, one table in each module."""

from __future__ import annotations

import re
from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autodiff.gradient_cases import Case

TABLES: dict[str, Sequence[Case]] = {
    module.name: import_module(f"{__name__}.{module.name}").CASES for module in iter_modules(__path__)
}


def cases_of(op_type: str, domain: str = "") -> list[Case]:
    """The cases in float that have an op."""
    op = rf"(?<![\w.]){re.escape(f'{domain}.' if domain else '')}{op_type}\b"
    cases = [case for table in TABLES.values() for case in table]
    return [case for case in cases if re.search(op, case.body) and "double" not in case.inputs]
