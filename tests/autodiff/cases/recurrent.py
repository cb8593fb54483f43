"""Gradients of LSTM, GRU and RNN."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import Case

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STATES = {"LSTM": ("h", "c"), "GRU": ("h",), "RNN": ("h",)}
OUTPUTS = {"LSTM": ("y", "yh", "yc"), "GRU": ("y", "yh"), "RNN": ("y", "yh")}
SIZES = ({"T": 3, "N": 2}, {"T": 1, "N": 3})
OPTIONAL = ("lengths", "peepholes")
NOT_LOWERED = "the ops of ORT's builder have no lowering; tests/ort_training compares with its kernels"


LENGTHS = ({"T": 4, "N": 4}, {"T": 2, "N": 4})
ENDS = np.array([1, 2, 0, 2])
"""The lengths of the sequences."""
BIDIRECTIONAL = 'direction = "bidirectional"'


def padded(rng, shape):
    """A draw of sequences that are NaN where they are over."""
    over = np.arange(shape[0])[:, None] >= ENDS
    return np.where(over[..., None], np.nan, rng.standard_normal(shape))


def recurrent(name, op, *, states=True, bias=True, outputs=("y",), directions=1, attributes="", **more):
    """A node with some of its inputs and outputs.

    Args:
        name: What the name of the case ends with.
        op: The op.
        states: Whether it has first states.
        bias: Whether it has biases.
        outputs: Its outputs, which the loss reads.
        directions: The number of its directions.
        attributes: Its attributes, except hidden_size.
        more: ``lengths`` and ``peepholes``: whether it has these inputs; and further fields of the case.
    """
    element, lengths, peepholes = more.get("element", "float"), *(more.pop(word, False) for word in OPTIONAL)
    rows = GATES[op] * 2
    batch, state = ("N, T", f"N, {directions}") if "layout = 1" in attributes else ("T, N", f"{directions}, N")
    inputs = {"x": f"{batch}, 3", "w": f"{directions}, {rows}, 3", "r": f"{directions}, {rows}, 2"}
    if bias:
        inputs["b"] = f"{directions}, {2 * rows}"
    if states:
        inputs |= dict.fromkeys(STATES[op], f"{state}, 2")
    if peepholes:
        inputs["p"] = f"{directions}, 6"
    firsts = STATES[op] if states else [""] * len(STATES[op])
    operands = ["x", "w", "r", "b" if bias else "", "n" if lengths else "", *firsts, "p" if peepholes else ""]
    results = [output if output in outputs else "" for output in OUTPUTS[op]]
    texts = [", ".join(values).rstrip(", ") for values in (results, operands)]
    body = f"{texts[0]} = {op} <hidden_size = 2{', ' if attributes else ''}{attributes}> ({texts[1]})"
    types = ", ".join(f"{element}[{shape}] {value}" for value, shape in inputs.items())
    if lengths:
        types += ", int32[N] n"
        draw = {"n": lambda _, shape: ENDS[: shape[0]]} | ({} if "layout" in attributes else {"x": padded})
        more = {"dims": LENGTHS, "draw": draw} | more
    return Case(
        f"{op} {name}", types, body, tuple(inputs), outputs, **{"dims": SIZES, "oracle": NOT_LOWERED} | more
    )


def cases():
    yield recurrent("activations", "LSTM", attributes='activations = ["Sigmoid", "Tanh", "tanh"]')
    for op in GATES:
        yield recurrent("plain", op)
        yield recurrent("without optional inputs", op, states=False, bias=False)
        yield recurrent("reverse", op, attributes='direction = "reverse"')
        yield recurrent("bidirectional", op, directions=2, attributes='direction = "bidirectional"')
        yield recurrent("last state", op, outputs=("yh",))
        yield recurrent("all outputs", op, outputs=OUTPUTS[op])
        yield recurrent("opset 22", op, opset=22)
        yield recurrent(
            "batch first", op, directions=2, outputs=OUTPUTS[op], attributes=f"layout = 1, {BIDIRECTIONAL}"
        )
    yield recurrent("last cell", "LSTM", outputs=("yc",))
    yield recurrent("linear before reset", "GRU", attributes="linear_before_reset = 1")
    yield recurrent(
        "linear before reset, both ways",
        "GRU",
        directions=2,
        attributes='linear_before_reset = 1, direction = "bidirectional"',
    )
    for name in ("Relu", "Sigmoid", "Tanh"):
        yield recurrent(name, "RNN", attributes=f'activations = ["{name}"]')
    yield recurrent(
        "activations",
        "RNN",
        directions=2,
        attributes='activations = ["Relu", "Tanh"], direction = "bidirectional"',
    )
    yield recurrent("linear before reset, no bias", "GRU", bias=False, attributes="linear_before_reset = 1")
    yield from of_lengths()
    yield from peepholes()
    yield from activations()


def of_lengths():
    for op in GATES:
        yield recurrent("lengths", op, lengths=True, outputs=OUTPUTS[op], is_long=True)
        yield recurrent(
            "lengths both ways", op, lengths=True, outputs=OUTPUTS[op], directions=2, attributes=BIDIRECTIONAL
        )
        yield recurrent(
            "no steps",
            op,
            lengths=True,
            outputs=OUTPUTS[op],
            directions=2,
            attributes=BIDIRECTIONAL,
            dims=({"T": 0, "N": 2},),
            draw={"n": lambda _, shape: np.zeros(shape)},
            is_long=op != "LSTM",
        )
        yield recurrent(
            "lengths reversed, last state",
            op,
            lengths=True,
            states=False,
            bias=False,
            outputs=("yh",),
            attributes='direction = "reverse"',
            is_long=True,
        )
    yield recurrent(
        "lengths, linear before reset",
        "GRU",
        lengths=True,
        attributes="linear_before_reset = 1, layout = 1, clip = 0.7",
    )


def peepholes():
    yield recurrent("peepholes", "LSTM", peepholes=True, outputs=OUTPUTS["LSTM"])
    yield recurrent("coupled gates", "LSTM", outputs=OUTPUTS["LSTM"], attributes="input_forget = 1")
    yield recurrent(
        "coupled gates, peepholes, lengths both ways",
        "LSTM",
        directions=2,
        lengths=True,
        peepholes=True,
        outputs=("y", "yc"),
        attributes=f"input_forget = 1, {BIDIRECTIONAL}",
    )
    yield recurrent(
        "peepholes, lengths, clip",
        "LSTM",
        states=False,
        bias=False,
        lengths=True,
        peepholes=True,
        attributes='direction = "reverse", clip = 0.6',
    )


NUMBERS = {"alpha": [0.4, 0.3, 0.7, 0.6], "beta": [0.1, 0.8, 0.2, 0.3]}


def activations():
    numbers = ", ".join(f"activation_{word} = {values}" for word, values in NUMBERS.items())
    for op, names in (
        ("LSTM", ["HardSigmoid", "ScaledTanh", "Softsign", "Sigmoid", "Affine", "Elu"]),
        ("LSTM", ["Softplus", "LeakyRelu", "Relu", "Relu", "ThresholdedRelu", "Tanh"]),
        ("GRU", ["HardSigmoid", "Elu", "Softsign", "ScaledTanh"]),
        ("GRU", ["Tanh", "ThresholdedRelu", "Sigmoid", "Softplus"]),
        ("GRU", ["Sigmoid", "Relu", "Relu", "Affine"]),
    ):
        yield of_names(op, names, f'direction = "bidirectional", {numbers}')
    # ONNX Runtime's RNN takes those of the direction, ONNX the next ones.
    for alpha, beta, names in (
        ([0.4, 0.3], [0.1, 0.8], ["Affine", "ScaledTanh"]),
        ([0.4, 0.3], [0.1, 0.1], ["Elu", "HardSigmoid"]),
        ([0.4, 0.3], [], ["LeakyRelu", "ThresholdedRelu"]),
        ([], [], ["Softplus", "Softsign"]),
    ):
        numbers = ", ".join(
            f"activation_{word} = {values}" for word, values in (("alpha", alpha), ("beta", beta)) if values
        )
        yield of_names("RNN", names, f'direction = "bidirectional"{", " * bool(numbers)}{numbers}')
    for op in GATES:
        yield recurrent("clip", op, outputs=("y", "yh"), attributes="clip = 0.5")
    yield recurrent("clip, linear before reset", "GRU", attributes="clip = 0.5, linear_before_reset = 1")
    yield recurrent("default of alpha", "GRU", attributes='activations = ["hardsigmoid", "leakyrelu"]')
    yield recurrent("two names", "RNN", attributes='activations = ["Tanh", "Relu"]')


def of_names(op, names, attributes):
    """A node with these activations."""
    quoted = ", ".join(f'"{name}"' for name in names)
    return recurrent(", ".join(names), op, directions=2, attributes=f"activations = [{quoted}], {attributes}")


CASES = [*cases()]
