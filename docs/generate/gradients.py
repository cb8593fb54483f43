"""Writes the tables of docs/reference/gradients.md from the gradient rules.

.venv/bin/python docs/generate/gradients.py

The text between the tables is written by hand. A table lies between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
from gradient_builders import BUILDERS
from onnxruntime.capi import onnxruntime_pybind11_state as ort

from bngrad.autodiff.expansion import function_versions
from bngrad.autodiff.fused_ops import FUSED_OPS
from bngrad.autodiff.rules import RULES
from bngrad.autodiff.rules.without_rule import WITHOUT_RULE
from bngrad.graph.batch_norms import SUPPORTED_DTYPES
from bngrad.opset.functions import DOMAIN, NEWEST_OPSET
from bngrad.opset.op_attributes import FLAG
from bngrad.opset.ort_dialect import BATCH_NORM_INTERNAL, MICROSOFT
from tables import rows_of, with_tables

if TYPE_CHECKING:
    from collections.abc import Sequence

    from bngrad.autodiff.rule import Rule

PAGE = Path(__file__).parents[1] / "reference" / "gradients.md"
_FLOATS = {f"tensor({dtype.name.lower()})" for dtype in SUPPORTED_DTYPES}
_OF_ORT = {schema.name: schema for schema in ort.get_all_operator_schema() if schema.domain == MICROSOFT}
_OPS = sorted({schema.name for schema in onnx.defs.get_all_schemas() if not schema.domain})


def page() -> str:
    """Returns the page, with the tables of now."""
    return with_tables(PAGE, lambda name: _ops() if name == "ops" else _without_rule())


def _ops() -> str:
    table = [_row(key, rule) for key, rule in RULES.items() if key[0] != DOMAIN]
    functions = [op for op in _OPS if ("", op) not in RULES and function_versions(op, NEWEST_OPSET)]
    table += [[_name("", op), "", "", "by the function that defines it", "", _also(op)] for op in functions]
    parts = "by the ops that it consists of"
    table += [[_name(domain, op), "", "", parts, "", _also(op, domain)] for domain, op in FUSED_OPS]
    header = ["op", "versions", "inputs with a gradient", "gradient", "attributes", "also by"]
    return rows_of(header, sorted(table, key=lambda cells: cells[0].lower()))


def _row(key: tuple[str, str], rule: Rule) -> list[str]:
    domain, op = key
    versions = ", ".join(map(str, rule.versions)) if not domain else ""
    formula = (rule.gradients.__doc__ or "").split("\n\n")[0]
    return [_name(*key), versions, _inputs(key, rule), _escaped(formula), _attributes(rule), _also(op, domain)]


def _name(domain: str, op: str) -> str:
    return f"`{domain}.{op}`" if domain else f"`{op}`"


def _also(op: str, domain: str = "") -> str:
    """Returns the other builders with a gradient of an op; only ONNX Runtime's has those of com.microsoft."""
    return ", ".join(name for name, ops in BUILDERS.items() if op in ops.split() and (name == "ORT" or not domain))


def _inputs(key: tuple[str, str], rule: Rule) -> str:
    """Returns the names of the inputs with a gradient, then those with the gradient 0 or without one."""
    domain, op = ("", "BatchNormalization") if key == BATCH_NORM_INTERNAL else key  # their inputs are the same
    schema = _OF_ORT[op] if domain else onnx.defs.get_schema(op, NEWEST_OPSET)
    floats = [(i, value.name) for i, value in enumerate(schema.inputs) if not _FLOATS.isdisjoint(value.types)]
    parts = [
        ", ".join(name for i, name in floats if rule.differentiates(i)),
        _listed("0", [name for i, name in floats if i in rule.zero]),
        _listed("constant", [name for i, name in floats if not rule.differentiates(i) and i not in rule.zero]),
    ]
    return "; ".join(filter(None, parts))


def _listed(kind: str, names: Sequence[str]) -> str:
    return f"{kind}: {', '.join(names)}" if names else ""


def _attributes(rule: Rule) -> str:
    """Returns the attributes, each with the values that the rule supports if it does not support all."""
    texts = []
    for name, values in sorted((rule.attributes or {}).items()):
        supported = ", ".join(str(value) for value in values if value != "")
        texts.append(f"`{name}`" if not values or tuple(values) == FLAG else f"`{name}` ({supported})")
    return ", ".join(texts)


def _escaped(text: str) -> str:
    for character in "|*_<[":
        text = text.replace(character, f"\\{character}")
    return " ".join(text.replace("``", "").split())


def _without_rule() -> str:
    ops = defaultdict(list)
    for op in _OPS:
        if op in WITHOUT_RULE:
            ops[WITHOUT_RULE[op]].append(op)
        elif ("", op) not in {*RULES, *FUSED_OPS} and not (
            function_versions(op, NEWEST_OPSET) or op.endswith("Grad")
        ):
            ops["no rule yet"].append(op)
    return rows_of(
        ["reason", "ops"], [[reason, ", ".join(map("`{}`".format, names))] for reason, names in ops.items()]
    )


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
