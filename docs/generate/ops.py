"""Writes the tables of docs/reference/ops.md from the schemas: inputs, outputs, attributes and types of each op.

.venv/bin/python docs/generate/ops.py

The text between the tables is written by hand. A table lies between ``<!-- NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

from pathlib import Path

import onnx

from bngrad.opset import batched_conv, depthwise, overloaded
from bngrad.opset.functions import DOMAIN, FUNCTIONS, VERSION
from bngrad.opset.quantities import ATTRIBUTES, QUANTITIES
from bngrad.opset.schemas import schema, signature
from tables import rows_of, with_tables

SIGNATURES = {
    **batched_conv.SIGNATURES,
    depthwise.CONV: depthwise.CONV_SIGNATURE,
    depthwise.GRAD: depthwise.GRAD_SIGNATURE,
    **overloaded.SIGNATURES,
}
"""The ops apart from `FUNCTIONS`; the names of DepthwiseConvGrad are one op."""

PAGE = Path(__file__).parents[1] / "reference" / "ops.md"


def page() -> str:
    """Returns the page, with the tables of now."""
    return with_tables(PAGE, table)


def table(name: str) -> str:
    """Returns a table: ``ops`` and ``types`` of the domain, or that of an op."""
    if name == "ops":
        return rows_of(["op", "inputs", "outputs", "attributes"], map(_overview, [*FUNCTIONS, *SIGNATURES]))
    if name == "types":
        return rows_of(["", "types", ""], types())
    return rows_of(["", "", "type", ""], quantities(name))


def _overview(name: str) -> list[str]:
    values = SIGNATURES.get(name) or signature(name)
    return [f"[{name}](#{name.lower()})", *map(", ".join, values)]


def quantities(name: str) -> list[list[str]]:
    """Returns a row for each input, output and attribute of an op, in the order of its function."""
    if name in SIGNATURES:
        registered = depthwise.GRADS[0] if name == depthwise.GRAD else name
        op = onnx.defs.get_schema(registered, VERSION, DOMAIN)
        types = {value.name: _plain(value.type_str) for value in (*op.inputs, *op.outputs)}
        types |= {value.name: value.type.name.lower() for value in op.attributes.values()}
        return [
            [kind if i == 0 else "", f"`{value}`", types[value], doc]
            for kind, values in zip(("input", "output", "attribute"), SIGNATURES[name], strict=True)
            for i, (value, doc) in enumerate(values.items())
        ]
    inputs, outputs, attributes = signature(name)
    rows = [
        [kind if i == 0 else "", f"`{value}`", _plain(QUANTITIES[value].type_constraint), QUANTITIES[value].doc]
        for kind, values in (("input", inputs), ("output", outputs))
        for i, value in enumerate(values)
    ]
    return rows + [
        ["attribute" if i == 0 else "", f"`{attribute}`", kind, ATTRIBUTES[attribute]]
        for i, (attribute, kind) in enumerate(attributes.items())
    ]


def types() -> list[list[str]]:
    """Returns a row for each type variable of the ops."""
    constraints = {
        constraint.type_param_str: constraint for name in FUNCTIONS for constraint in schema(name).type_constraints
    }
    return [
        [name, ", ".join(map(_plain, constraint.allowed_type_strs)), constraint.description]
        for name, constraint in constraints.items()
    ]


def _plain(kind: str) -> str:
    return kind.removeprefix("tensor(").removesuffix(")")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8", newline="\n")
