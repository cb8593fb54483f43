"""Gradients of softmaxes and of losses over class labels."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import FLOAT_ALONE, NO_RULE, Case, positive
from pairwise import all_pairs

BOTH = "ORT's builder drops what comes from the second output"
N = ({"N": 1}, {"N": 4})
IMAGES = ({"N": 1, "H": 1, "W": 2}, {"N": 2, "H": 3, "W": 2})
CLASSES = 5


def labels(*, ignored=None):
    """Draws labels; about a third are ``ignored``, but not all: the mean of nothing is NaN."""

    def draw(rng, shape):
        counted = rng.choice([c for c in range(CLASSES) if c != ignored], shape)
        ignore = rng.random(shape) < 0.3
        ignore.flat[0] = False
        return counted if ignored is None else np.where(ignore, ignored, counted)

    return draw


def softmaxes():
    for op in ("Softmax", "LogSoftmax"):
        for what, shape, attributes, dims, opset in [
            ("of rows", "N, 4", "", N, 18),
            ("of rows, symbols", "N, H", "", IMAGES, 18),
            ("of columns", "N, 4", "axis = 0", N, 18),
            ("in the middle", "N, 4, H, W", "axis = 1", IMAGES, 18),
            ("of a negative axis", "N, H, W", "axis = -2", IMAGES, 18),
            ("of a vector", "N", "", N, 18),
            ("opset 13", "N, H, W", "axis = 1", IMAGES, 13),
            ("newest", "N, H, W", "axis = 1", IMAGES, 26),
        ]:
            body = f"y = {op} <{attributes}> (x)".replace("<> ", "")
            yield Case(f"{op} {what}", f"float[{shape}] x", body, dims=dims, opset=opset)
        body = f"y = {op} (x)"
        yield Case(
            f"{op} of double", "double[N, 3] x", body, element="double", float_limit=1e-13, oracle=FLOAT_ALONE
        )
        yield Case(
            f"{op} of a MatMul", "float[N, 3] x, float[3, 4] w", f"t = MatMul(x, w) \n y = {op} (t)", ("x", "w")
        )


REDUCTIONS = ("mean", "sum", "none")
FORMS = [
    ("", False, None),
    (", weights", True, None),
    (", a class ignored", False, 2),
    (", padding of -1", False, -1),
    (", padding of -100", False, -100),
    (", weights and a class ignored", True, 2),
    (", weights and padding of -100", True, -100),
]
FORMS_BY_WEIGHTS = [("", None), (", a class ignored", 2), (", padding of -100", -100)]
SHAPES = [("N, 5", "N", N), ("N, 5, H, W", "N, H, W", IMAGES)]


def losses(op):
    oracle = NO_RULE if op == "NegativeLogLikelihoodLoss" else ""
    selected = all_pairs(REDUCTIONS, FORMS, SHAPES)
    for reduction in REDUCTIONS:
        for form in FORMS:
            for extents in SHAPES:
                (what, weighted, ignore), (shape, of_labels, sizes) = form, extents
                attributes = f'reduction = "{reduction}"' + (f", ignore_index = {ignore}" if ignore else "")
                yield Case(
                    f"{op} [{shape}] {reduction}{what}",
                    f"float[{shape}] x, int64[{of_labels}] t" + (", float[5] w" if weighted else ""),
                    f"y = {op} <{attributes}> (x, t{', w' if weighted else ''})",
                    dims=sizes if reduction == "mean" and not weighted else sizes[1:],
                    draw={"t": labels(ignored=ignore), "w": positive},
                    oracle=oracle,
                    is_long=(reduction, form, extents) not in selected,
                )
    for what, more in [
        ("int32 labels", {}),
        ("static", {"dims": ({},)}),
        ("opset 13", {"opset": 13}),
        ("newest", {"opset": 26}),
        ("series", {"dims": IMAGES}),
    ]:
        kind, n = "int32" if what == "int32 labels" else "int64", "4" if what == "static" else "N"
        wide = ", H" if what == "series" else ""
        yield Case(
            f"{op}, {what}",
            f"float[{n}, 5{wide}] x, {kind}[{n}{wide}] t, float[5] w",
            f"y = {op} <ignore_index = 3> (x, t, w)",
            draw={"t": labels(ignored=3), "w": positive},
            oracle=oracle,
            **{"dims": N, **more},
        )
    yield Case(
        f"{op} of double",
        "double[N, 5] x, int64[N] t, double[5] w",
        f"y = {op} <ignore_index = -1> (x, t, w)",
        dims=N,
        draw={"t": labels(ignored=-1), "w": positive},
        element="double",
        float_limit=1e-13,
        oracle=FLOAT_ALONE,
    )


def losses_by_weights(op):
    """Cases in which the weights of the classes have a gradient."""
    oracle = "ORT's builder takes weights of classes for constants"
    selected = all_pairs(REDUCTIONS, FORMS_BY_WEIGHTS, SHAPES)
    for reduction in REDUCTIONS:
        for form in FORMS_BY_WEIGHTS:
            for extents in SHAPES:
                (what, ignore), (shape, of_labels, sizes) = form, extents
                attributes = f'reduction = "{reduction}"' + (f", ignore_index = {ignore}" if ignore else "")
                yield Case(
                    f"{op} [{shape}] {reduction}{what}, by weights too",
                    f"float[{shape}] x, int64[{of_labels}] t, float[5] w",
                    f"y = {op} <{attributes}> (x, t, w)",
                    ("x", "w"),
                    dims=sizes[1:],
                    draw={"t": labels(ignored=ignore), "w": positive},
                    oracle=oracle,
                    is_long=(reduction, form, extents) not in selected,
                )
    for what, more in [
        ("alone", {"wrt": ("w",)}),
        (
            "made of the scores",
            {"body": f"e = Exp (x) a = Constant <value_ints = [0]> () \n {COMPUTED.format(op)}"},
        ),
        ("alone, int32 labels", {"kind": "int32", "wrt": ("w",)}),
        ("alone, double", {"element": "double", "wrt": ("w",), "float_limit": 1e-13}),
    ]:
        element, kind = more.get("element", "float"), more.pop("kind", "int64")
        body = more.pop("body", f"y = {op} <ignore_index = 3> (x, t, w)")
        yield Case(
            f"{op}, by weights {what}",
            f"{element}[N, 5] x, {kind}[N] t, {element}[5] w",
            body,
            draw={"t": labels(ignored=3), "w": positive},
            oracle=oracle,
            **{"wrt": ("x", "w"), "dims": N[1:], **more},
        )


COMPUTED = "c = ReduceMean <keepdims = 0> (e, a) d = Mul (c, w) y = {} (x, t, d)"

CASES = [
    *softmaxes(),
    *losses("SoftmaxCrossEntropyLoss"),
    *losses("NegativeLogLikelihoodLoss"),
    *losses_by_weights("SoftmaxCrossEntropyLoss"),
    *losses_by_weights("NegativeLogLikelihoodLoss"),
    Case(
        "cross entropy, both outputs, by weights too",
        "float[N, 5] x, int64[N] t, float[5] w",
        "y, p = SoftmaxCrossEntropyLoss (x, t, w)",
        ("x", "w"),
        ("y", "p"),
        dims=N,
        draw={"t": labels(), "w": positive},
        oracle=BOTH,
    ),
    *(
        Case(
            f"cross entropy, {what}",
            "float[N, 5, H] x, int64[N, H] t",
            f'y, p = SoftmaxCrossEntropyLoss <reduction = "{reduction}", ignore_index = 1> (x, t)',
            outputs=outputs,
            dims=IMAGES,
            draw={"t": labels(ignored=1)},
            oracle=BOTH if "p" in outputs else "",
        )
        for what, outputs, reduction in [
            ("with an output that is not read", ("y",), "mean"),
            ("both outputs", ("y", "p"), "mean"),
            ("both outputs, of each", ("y", "p"), "none"),
            ("second output alone", ("p",), "sum"),
        ]
    ),
    Case(
        "NLL of LogSoftmax",
        "float[N, 5] x, int64[N] t",
        "p = LogSoftmax <axis = 1> (x) \n y = NegativeLogLikelihoodLoss(p, t)",
        dims=N,
        draw={"t": labels()},
        oracle=NO_RULE,
    ),
    Case(
        "cross entropy of Gemm",
        "float[N, 3] x, float[5, 3] w, float[5] b, int64[N] t",
        "s = Gemm <transB = 1> (x, w, b) \n y = SoftmaxCrossEntropyLoss(s, t)",
        ("x", "w", "b"),
        dims=N,
        draw={"t": labels()},
    ),
]
BEFORE_OPSET_13 = [
    Case(f"{op} {what}", f"float[{shape}] x", f"y = {op} <{attributes}> (x)", dims=IMAGES, opset=12)
    for op in ("Softmax", "LogSoftmax")
    for what, shape, attributes in [
        ("from axis 1 on", "N, H, W", "axis = 1"),
        ("from axis 2 on", "N, H, 2, W", "axis = 2"),
        ("from a negative axis on", "N, 2, H, W", "axis = -2"),
        ("of all", "N, H, W", "axis = 0"),
    ]
]
"""Cases below opset 13, where a softmax is over all axes from one on; onnx's evaluator lacks it."""
