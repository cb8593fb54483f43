"""Gradients of Attention and RotaryEmbedding."""

from __future__ import annotations

import numpy as np

from autodiff.gradient_cases import NO_RULE, Case

QKV = "float[N, 2, 3, 4] q, float[N, 2, 5, 4] k, float[N, 2, 5, 3] v"
PAST = "float[N, 2, 2, 4] pk, float[N, 2, 2, 3] pv"
ALL = ("q", "k", "v")


def attend(name, attributes="", inputs="q, k, v", outputs=("y",), *, also="", qkv=QKV, wrt=ALL, **more):
    names = ("y", *(name if name in outputs else "" for name in "abp"))
    results = ", ".join(names).rstrip(", ")
    return Case(
        f"attention {name}",
        ", ".join(filter(None, (qkv, also))),
        f"{results} = Attention {f'<{attributes}> ' if attributes else ''}({inputs})",
        wrt,
        outputs=outputs,
        oracle=NO_RULE,
        opset=more.pop("opset", 23),
        **{"float_limit": 3e-5} | more,
    )


def some_keys(rng, shape):
    """A draw of masks: the first key of each row, and others; no key in the first row."""
    mask = rng.random(shape) < 0.6
    mask[..., 0] = True
    mask[..., 0, :] = False
    return mask


def rotate(name, attributes="", x="N, 2, 3, 8", cache="N, 3, 4", **more):
    positions = "ids" in more.get("draw", {})
    return Case(
        f"rotary embedding {name}",
        f"float[{x}] x, float[{cache}] c, float[{cache}] s" + ", int64[N, 3] ids" * positions,
        f"y = RotaryEmbedding {attributes} (x, c, s{', ids' * positions})",
        ("x", "c", "s"),
        oracle=NO_RULE,
        opset=23,
        **more,
    )


MASKED = {"m": some_keys}
POSITIONS = {"ids": lambda rng, shape: rng.integers(0, 5, shape)}
CASES = [
    attend("", "scale = 0.7"),
    attend("float mask", inputs="q, k, v, m", also="float[1, 3, 5] m", wrt=(*ALL, "m")),
    attend("bool mask without keys, causal", "is_causal = 1", "q, k, v, m", also="bool[3, 5] m", draw=MASKED),
    attend(
        "3-d, heads that share keys",
        "q_num_heads = 4, kv_num_heads = 2, softcap = 0.5",
        "q, k, v, m",
        qkv="float[N, S, 12] q, float[N, T, 6] k, float[N, T, 4] v",
        also="float[1, 4, S, T] m",
        wrt=(*ALL, "m"),
        dims=({"N": 2, "S": 3, "T": 4}, {"N": 1, "S": 1, "T": 2}),
    ),
    attend(
        "past keys, causal",
        "is_causal = 1",
        "q, k, v, , pk, pv",
        ("y", "a", "b"),
        qkv="float[N, 4, S, 4] q, float[N, 2, S, 4] k, float[N, 2, S, 3] v",
        also=PAST.replace("2, 2,", "2, P,"),
        wrt=(*ALL, "pk", "pv"),
        dims=({"N": 2, "S": 3, "P": 1}, {"N": 1, "S": 2, "P": 2}),
    ),
    attend("present keys alone", "", "q, k, v, , pk, pv", ("a", "b"), also=PAST, wrt=("k", "v", "pv")),
    *(
        attend(
            f"products, mode {mode}",
            f"qk_matmul_output_mode = {mode}" + ", softcap = 2.0" * (mode > 0),  # onnx 1.23 caps those of mode 0
            "q, k, v, m",
            ("y", "p"),
            also="float[3, 5] m",
            wrt=(*ALL, "m"),
            opset=opset,
        )
        for mode, opset in ((0, 23), (1, 24), (2, 23), (3, 24))
    ),
    attend(
        "products of past keys",
        "qk_matmul_output_mode = 1",
        "q, k, v, , pk, pv",
        ("y", "a", "b", "p"),
        also=PAST,
        wrt=(*ALL, "pk", "pv"),
    ),
    attend("products alone", outputs=("p",), wrt=("q", "k")),
    attend(
        "numbers of keys",
        "is_causal = 1",
        "q, k, v, , , , n",
        also="int64[N] n",
        opset=24,
        draw={"n": lambda _rng, shape: np.arange(shape[0]) + 2},
    ),
    attend("window", "left_window_size = 1, right_window_size = 1", opset=25),
    attend("of the values alone", wrt=("v",)),
    attend(
        "of double",
        "is_causal = 1",
        qkv=QKV.replace("float", "double"),
        element="double",
        float_limit=1e-7,  # its function has a scale in float
    ),
    attend(
        "softmax in double",
        "softmax_precision = 11",
        inputs="q, k, v, m",
        also="float[N, 1, 3, 5] m",
    ),
    rotate("of each element with one of the other half"),
    rotate("of neighbours, by positions", "<interleaved = 1>", cache="5, 4", draw=POSITIONS),
    rotate("3-d, in part", "<num_heads = 2, rotary_embedding_dim = 4>", "N, 3, 12", "N, 3, 2"),
    rotate(
        "3-d, of neighbours in part, by positions",
        "<num_heads = 2, rotary_embedding_dim = 4, interleaved = 1>",
        "N, 3, 12",
        "5, 2",
        draw=POSITIONS,
    ),
]
