"""Adds an error of 1 % to every Nth gradient rule, one at a time, and prints when it is found, as JSON.

    {"<domain>.<op>": number of graphs until it is found, or null, ...}

A program of its own, because a campaign forks.
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

import onnx

from bngrad.autodiff.rules import RULES
from bngrad.graph.node_reader import like
from fuzz.campaign import run_cases
from fuzz.judge import Finding
from gradient_fuzz.cases import make, rules
from gradient_fuzz.judge import judge
from gradient_fuzz.sketch import NotDrawableError

if TYPE_CHECKING:
    import onnx_ir as ir

    from bngrad.autodiff.backward import Backward
    from bngrad.autodiff.rule import Gradients, Rule

SEED = 11
GRAPHS = 20
"""The most graphs of a rule until the error in it must be found."""


def one_percent_more(rule: Rule) -> Rule:
    """A rule whose gradients are too large; where they are 0, they become a hundredth of dY."""

    def gradients(back: Backward) -> Gradients:
        result: list[ir.Value | None] = []
        for index, value in enumerate(rule.gradients(back)):
            if value is not None:
                operands = [*back.node.inputs, *back.captured]
                x = operands[index]
                value.type, value.shape = value.type or x.type, value.shape or x.shape
                result.append(back.op("Mul", value, like(back, 1.01, x)))
            else:
                result.append(None)
        return result

    def of_zero(back: Backward) -> Gradients:
        return [back.op("Mul", back.dY, like(back, 0.01, back.dY))]

    if rule.inputs == ():
        return replace(rule, gradients=of_zero, inputs=(0,), zero=())
    return replace(rule, gradients=gradients)


def judging(case: tuple[tuple[str, str], int]) -> tuple[list[Finding], Counter[str]]:
    """Returns whether the error in a rule is found in one of its graphs from a number on, and counts them."""
    warnings.simplefilter("ignore")
    key, first = case
    right = RULES[key]
    for number in range(first, first + GRAPHS):
        try:
            forward = make(SEED, number, key, onnx.TensorProto.FLOAT)
            RULES[key] = one_percent_more(right)
            verdict = judge(forward, (0,))
        except NotDrawableError:
            continue
        finally:
            RULES[key] = right
        if any("wrong" in find.what for find in verdict.finds):
            return [Finding("", "found")], Counter({"graphs": number + 1})
    return [], Counter()


def graphs_until_found(keys: list[tuple[str, str]]) -> dict[str, int | None]:
    """Returns the number of graphs until the error is found, by rule."""
    result: dict[str, int | None] = {f"{domain}.{op_type}": None for domain, op_type in keys}
    for attempt in range(2):  # ONNX Runtime may end a worker with a forward graph
        waiting = [key for key in keys if result[".".join(key)] is None]

        def making(_: int, index: int, waiting: list = waiting, attempt: int = attempt) -> tuple:
            return waiting[index], attempt * GRAPHS

        for index, finds, ends in run_cases(SEED, range(len(waiting)), judging, making):
            if any(find.what == "found" for find in finds):
                result[".".join(waiting[index])] = ends["graphs"]
    return result


if __name__ == "__main__":
    print(json.dumps(graphs_until_found(rules()[:: int(sys.argv[1])])))
