"""Mutants of the package: definitions of the ops, calls of the library, gradient rules."""

from __future__ import annotations

from metamorphic.mutants import of

_RULES = ("tests/autodiff/test_rules.py::test_gradients",)

_SINGULAR = ("tests/autodiff/test_singular.py",)
_ROUNDINGS = ("tests/autodiff/test_straight_through.py",)
_NBITS = ("tests/autodiff/test_matmul_nbits.py",)
_QUERIES = ("tests/autodiff/test_group_query_attention.py",)

OPSET = of(
    "bngrad/opset/functions.py",
    (
        "gain = op.Unsqueeze(op.Cast(scale, to=COMPUTE) * inv_std_c, axes)",
        "gain = op.Unsqueeze(op.Cast(scale, to=COMPUTE), axes)",
        "dX without inv_std",
    ),
    (
        "- through_variance, dy)",
        "+ through_variance, dy)",
        "the statistics' term has the wrong sign",
    ),
    (
        "dy - op.Unsqueeze(about, axes)",
        "dy - op.Unsqueeze(sum_dy, axes)",
        "dX with the sum of dY for its mean",
    ),
    (
        "op.Cast(bias, to=COMPUTE) - residual * gain",
        "op.Cast(bias, to=COMPUTE)",
        "Y without what the first mean left",
    ),
    ("op.Cast(Z, to=COMPUTE) > zero", "op.Cast(Z, to=COMPUTE) >= zero", "a ReLU passes dZ where Z is 0"),
    (
        "next_mean = keep * op.Cast(running_mean, to=COMPUTE) + (unit - keep) * mean",
        "next_mean = keep * op.Cast(running_mean, to=COMPUTE) + keep * mean",
        "a running mean whose weights do not sum to 1",
    ),
    (
        "op.Where(unbiased, M / op.Max(M - unit, unit), unit)",
        "op.Where(unbiased, unit, M / op.Max(M - unit, unit))",
        "Bessel's correction in the biased variance",
    ),
    (
        "mean_dy_xhat * P_ddx + mean_ddx_xhat * P_dy",
        "mean_dy_xhat * P_dy + mean_ddx_xhat * P_ddx",
        "exchanged terms of d_X",
    ),
    (
        "op.Where(count > zero, inv_std_c * sum_ddx_P_dy, zero)",
        "op.Where(count > zero, sum_ddx_P_dy, zero)",
        "d_scale without inv_std",
    ),
)

REDUCED_COUNT = of(
    "bngrad/opset/reduced_count.py",
    ("count = length * op.CastLike(", "count = op.CastLike(", "the batch does not count"),
    ("op.Slice(ends, zero, unit)", "end", "dimension 0 counts where it is not reduced"),
    ("op.Slice(ends, unit, end)", "op.Shape(sample)", "channels count"),
)

NATIVE = of(
    "bngrad/runtime/kernel_call.py",
    (
        "[inputs[name] if name else None for name in arrays]",
        "[inputs[name] if name else None for name in sorted(arrays, key=str)]",
        "inputs are exchanged",
    ),
    (
        "_ATTRIBUTES[name](values[name]) for name in attributes",
        "_ATTRIBUTES[name](values[name]) for name in reversed(attributes)",
        "epsilon and momentum are exchanged",
    ),
)

NORM_RULES = of(
    "bngrad/autodiff/rules/normalization.py",
    ("scale, back.y(3), back.y(4))", "scale, back.y(4), back.y(3))", "mean and inv_std are exchanged"),
    (
        "axes=back.x(5), training_mode=1)",
        "axes=back.x(5), training_mode=0)",
        "TensorFlow's batch norm in training mode is differentiated as frozen",
        ("tests/autodiff/test_tensorflow_forward.py::test_central_differences",),
    ),
    (
        "wide, mean, inv_std, axes=axes, training_mode=0",
        "wide, mean, inv_std, axes=axes, training_mode=1",
        "a frozen batch norm is differentiated as in training mode",
    ),
    (
        'back.op("Mul", back.cast(scale, dtype), inv_std)',
        'back.op("Div", back.cast(scale, dtype), inv_std)',
        "a frozen dX divides by inv_std if the parameters need no gradient",
        _RULES,
    ),
    (
        "axes = back.axes([axis for axis in range(back.rank(x)) if axis != 1])",
        "axes = back.axes([axis for axis in range(back.rank(x)) if axis != 0])",
        "the channels are dimension 0",
    ),
    (
        "axes = back.axes(list(range(2, back.rank(x))))",
        "axes = back.axes(list(range(1, back.rank(x))))",
        "an instance norm over its channels",
    ),
    (
        'back.op("Reshape", back.op("Mul", dY, over_x), by_group',
        'back.op("Reshape", dY, by_group',
        "a group norm without its scale",
    ),
    (
        'float(np.float32(back.attribute("epsilon", 1e-5)))',
        "float(np.float32(1e-5))",
        "any epsilon is the default",
    ),
    ("like(back, 0.5, inv_std)", "like(back, 2, inv_std)", "a frozen variance's factor", _RULES),
    (
        "back.constant(2, dtype)",
        "back.constant(1, dtype)",
        "the gradient of a variance in the loss without its factor",
        _RULES,
    ),
    (
        "d_var, 1 - momentum)",
        "d_var, momentum)",
        "the weights of the old and new statistics are exchanged",
        _RULES,
    ),
)

LAYER_NORM_RULES = of(
    "bngrad/autodiff/rules/layer_norm.py",
    ("dY, [mean, inv_std])", "dY, [inv_std, mean])", "a layer norm's mean and inv_std are exchanged"),
    (
        "sum_to(back, wide, bias, x)",
        "sum_to(back, wide, scale, x)",
        "the gradient of a bias has the shape of the scale",
        _RULES,
    ),
)

RULES = (
    of(
        "bngrad/autodiff/rules/arithmetic.py",
        (
            "return for_each_input(back, lambda _: back.dY)",
            'return for_each_input(back, lambda _: back.op("Neg", back.dY))',
            "the gradient of a sum is negated",
        ),
        (
            'back.op("Neg", back.dY) if index else back.dY',
            "back.dY",
            "the gradient of a subtrahend is not negated",
        ),
        ("back.x(1 - index)", "back.x(index)", "the gradient of a product has the same factor"),
        ("like(back, exponent - 1, a)", "like(back, exponent, a)", "the exponent of a power's derivative"),
        (
            "scaled = back.times(back.dY, like(back, exponent, a))",
            "scaled = back.times(back.dY, like(back, 2, a))",
            "the factor of a power's derivative",
        ),
        (
            'share = back.op("Div", back.dY, like(back, len(back.node.inputs), back.dY))',
            'share = back.op("Div", back.dY, like(back, 2, back.dY))',
            "a mean always divides by 2",
            _RULES,
        ),
    )
    + of(
        "bngrad/autodiff/rules/unary.py",
        ("like(back, 0.5, back.dY)", "like(back, 2.0, back.dY)", "the factor of a square root's derivative"),
        (
            "back.times(back.dY, back.y(), singular=True)",
            "back.times(back.dY, back.x(0), singular=True)",
            "the derivative of exp",
        ),
        ("_over(back, back.dY, back.x(0))", "_over(back, back.dY, back.y())", "the derivative of log"),
        ('back.times(dY, back.op("Sign", x))', 'back.times(dY, back.op("Sign", dY))', "abs uses the sign of dY"),
        ("2 / math.sqrt(math.pi)", "1 / math.sqrt(math.pi)", "half the derivative of erf", _RULES),
    )
    + of(
        "bngrad/autodiff/rules/activation.py",
        (
            'back.attribute("alpha", 0.01) >= 0',
            'back.attribute("alpha", 0.01) < 0',
            "a leaky ReLU uses the wrong sign of its output",
            ("tests/autodiff/test_elementwise_values.py", *_RULES),
        ),
        (
            '_of_exponential(back, back.attribute("alpha", 1.0), 1.0)',
            "_of_exponential(back, 1.0, 1.0)",
            "the alpha of Elu is ignored",
        ),
        (
            "sigmoid_of(back, back.x(0), dtype_of(back.x(0))))]",
            'back.op("Tanh", back.x(0)))]',
            "the derivative of softplus",
        ),
        ('"none": "GeluGrad"', '"none": "FastGeluGrad"', "an approximation for the exact Gelu"),
    )
    + of(
        "bngrad/autodiff/backward.py",
        ("if self.unbounded or singular:", "if singular:", "no guard for a mask times infinity", _SINGULAR),
        ("if singular:", "if not singular:", "no guard at a singularity", _SINGULAR),
    )
    + of(
        "bngrad/autodiff/walk.py",
        ("if back.unbounded or is_singular(node):", "if back.unbounded:", "singular ops are ignored", _SINGULAR),
    )
    + of(
        "bngrad/autodiff/rules/matrix.py",
        (
            'dA = back.op("Gemm", dY, b, alpha=alpha, transA=0',
            'dA = back.op("Gemm", dY, b, alpha=1.0, transA=0',
            "dA ignores alpha",
        ),
        ("like(back, beta, dY)", "like(back, alpha, dY)", "dC uses alpha for beta"),
        (
            'return back.op("Gemm", *rows, transA=1)',
            'return back.op("Gemm", *rows, transA=1, alpha=2.0)',
            "dB is doubled",
        ),
        (
            "perm = [*batch, column, row]",
            "perm = [*batch, row, column]",
            "a batch of matrices is not transposed",
            _RULES,
        ),
    )
    + of(
        "bngrad/autodiff/rules/quantization.py",
        ("back.kept(within, dY)", "dY", "a rounding passes gradients beyond its range", _ROUNDINGS),
        (
            'back.op("Mul", of_x, ratio)',
            "of_x",
            "the scale of a rounding has the gradient of an offset",
            _ROUNDINGS,
        ),
        ('back.op("Mul", dY, integers)', "dY", "a scale ignores the integers", _ROUNDINGS),
    )
    + of(
        "bngrad/autodiff/rules/matmul_nbits.py",
        ("1 << (bits - 1)", "1 << bits", "another zero point than the middle", _NBITS),
        ('direction="RIGHT"', 'direction="LEFT"', "the high bits of a weight are lost", _NBITS),
    )
    + of(
        "bngrad/autodiff/fused_attention.py",
        ("site.int64(window - 1)", "site.int64(window)", "a window has one key more", _QUERIES),
        (
            'site.op("Less", places, past)',
            'site.op("Less", past, places)',
            "empty places of a cache are attended",
            _QUERIES,
        ),
    )
    + of(
        "bngrad/autodiff/rules/reduction.py",
        ("count, scale_down=1)", "count, scale_down=0)", "a mean multiplies by the count"),
        (
            'share = back.op("Div", back.cast(dY, dtype), _sum_again(back, back.cast(hit, dtype)))',
            "share = back.cast(dY, dtype)",
            "each of several maxima gets all of dY",
            ("tests/autodiff/test_reduction_rules.py", *_RULES),
        ),
        (
            'twice = back.op("Mul", back.dY, like(back, 2, back.dY))',
            "twice = back.dY",
            "a sum of squares without the factor 2",
            _RULES,
        ),
    )
    + of(
        "bngrad/autodiff/rules/loss.py",
        (
            '"SoftmaxGrad_13", back.dY, back.y(), axis=back.attribute("axis", -1)',
            '"SoftmaxGrad_13", back.dY, back.y(), axis=0',
            "the gradient of a softmax along the batch",
        ),
        (
            'back.microsoft("SoftmaxCrossEntropyLossGrad", *inputs, **back.attributes())',
            'back.microsoft("SoftmaxCrossEntropyLossGrad", *inputs)',
            "a loss ignores its attributes",
        ),
    )
    + of(
        "bngrad/autodiff/rules/selection.py",
        ("if index == 1 else", "if index == 2 else", "Where's branches are exchanged"),
        (
            'back.op(f"Greater{within}", x, low)',
            'back.op(f"Less{within}", x, low)',
            "a clip passes gradients below its minimum",
        ),
    )
    + of(
        "bngrad/autodiff/rules/shape.py",
        (
            "perm=sorted(range(len(perm)), key=list(perm).__getitem__)",
            "perm=perm",
            "the gradient of a transposition is not inverted",
        ),
    )
    + of(
        "bngrad/graph/broadcasting.py",
        (
            "make.int64(missing), keepdims=0)",
            "make.int64(missing[:1]), keepdims=0)",
            "only one of the missing axes is summed",
            _RULES,
        ),
        ("if mine == 1 != whole:", "if mine == whole != 1:", "axes that were not broadcast are summed"),
    )
)

BUILDER = of(
    "bngrad/autodiff/prepare_forward.py",
    (
        "for value, old in zip(node.outputs[1:], node.inputs[3:5], strict=False):",
        "for value, old in zip(node.outputs[1:], node.inputs[4:2:-1], strict=False):",
        "frozen statistics are exchanged",
    ),
) + of(
    "bngrad/passes/optimize/fold_affine.py",
    (
        'for slot in (1, 2) if after.op_type == "Mul" else (2,):',
        'for slot in (1,) if after.op_type == "Mul" else (2,):',
        "a factor is folded into the scale but not the bias",
    ),
)

RULE_MUTANTS = [*OPSET, *REDUCED_COUNT, *NATIVE, *NORM_RULES, *LAYER_NORM_RULES, *RULES, *BUILDER]
