"""Reports that pass, fail and compare nothing."""

from __future__ import annotations

from bngrad.inspection.diagnostic import Diagnostic
from bngrad.validation.report import Check, Report, Row


def row(subject="bn", *, passed=True, measure=0.5, tensor="dx", note="", kind="BatchNormalizationGrad"):
    return Row(subject, tensor, kind, "native", "ort", 1.0, 1.0, measure, passed=passed, note=note)


def lock_step(*rows, **fields):
    return Check("lock-step", unit="of its bound", limit=1.0, rows=list(rows), **fields)


def differences(*rows, **fields):
    return Check("central differences", unit="relative", limit=1e-5, rows=list(rows), **fields)


def report(*checks, model="m.onnx", **fields):
    return Report(model, {}, "reference", ["native"], 0, {}, checks=list(checks), **fields)


BAD = {"passed": False, "measure": 7.0}
PASSED = {
    "passed": report(lock_step(row()), notes=["a note"]),
    "skipped": report(lock_step(row()), differences(skipped="too large")),
    "undecided": report(lock_step(row()), differences(row("w_grad"), undecided={"v_grad": "a kink"})),
    "warning": report(lock_step(row()), warnings=[Diagnostic("'w' is a weight of 2 nodes", "tied-weights")]),
}
FAILED = {
    "node": report(lock_step(row(**BAD), row(tensor="dscale", **BAD), row("other"))),
    "two-nodes": report(lock_step(row(**BAD), row("other", **BAD))),
    "value": report(lock_step(row()), differences(row("w_grad", tensor="w_grad", kind="gradient", **BAD))),
    "nan": report(lock_step(row(passed=False, measure=float("nan")))),
    "odd-names": report(lock_step(row("a|b`c\n::error::x%", **BAD)), model="models/a b,c%.onnx"),
    "no-row": report(lock_step()),
    "required-and-skipped": report(lock_step(row()), differences(skipped="too large", required=True)),
    "all-skipped": report(lock_step(skipped="no op")),
    "no-check": report(),
}
ALL = PASSED | FAILED
