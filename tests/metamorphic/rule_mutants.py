"""Planted mistakes in the package: definitions of the ops, arguments of the library, rules of differentiation."""

from __future__ import annotations

from metamorphic.mutants import of

_RULES = (
    "tests/autodiff/test_rules.py::test_central_differences",
    "tests/autodiff/test_rules.py::test_stock",
)

_SINGULAR = ("tests/autodiff/test_singular.py",)

OPSET = of(
    "bngrad/opset/functions.py",
    ("axes) * inv_std_x * of_xhat, X)", "axes) * of_xhat, X)", "dX without inv_std"),
    ("dy - through_statistics, dy)", "dy + through_statistics, dy)", "the statistics' part has the other sign"),
    ("op.Cast(Z, to=COMPUTE) > zero", "op.Cast(Z, to=COMPUTE) >= zero", "a ReLU lets through where Z is 0"),
    (
        "next_mean = keep * op.Cast(running_mean, to=COMPUTE) + (one - keep) * mean",
        "next_mean = keep * op.Cast(running_mean, to=COMPUTE) + keep * mean",
        "a running mean with weights beyond 1",
    ),
    (
        "op.Where(unbiased, M / op.Max(M - one, one), one)",
        "op.Where(unbiased, one, M / op.Max(M - one, one))",
        "Bessel's correction where there should be none",
    ),
    ("mean_dy_xhat * P_ddx + mean_ddx_xhat * P_dy", "mean_dy_xhat * P_dy + mean_ddx_xhat * P_ddx", "d_X"),
    (
        "d_scale = op.CastLike(inv_std_c * sum_ddx_P_dy, scale)",
        "d_scale = op.CastLike(sum_ddx_P_dy, scale)",
        "d_scale",
    ),
)

DOOR = of(
    "bngrad/runtime/native.py",
    ("*problem.scales(scale=scale, bias=bias)]", "*problem.scales(bias=bias, scale=scale)]", "bias for scale"),
    (
        "ctypes.c_double(epsilon), ctypes.c_double(momentum),",
        "ctypes.c_double(momentum), ctypes.c_double(epsilon),",
        "momentum for epsilon",
    ),
)

NORM_RULES = of(
    "bngrad/autodiff/rules/normalization.py",
    ("scale, back.y(3), back.y(4))", "scale, back.y(4), back.y(3))", "mean and inv_std are exchanged"),
    (
        "axes=back.x(5), training_mode=1)",
        "axes=back.x(5), training_mode=0)",
        "TensorFlow's batch norm in training is differentiated as a frozen one",
        ("tests/autodiff/test_tensorflow_forward.py::test_central_differences",),
    ),
    (
        "wide, mean, inv_std, axes=axes, training_mode=0",
        "wide, mean, inv_std, axes=axes, training_mode=1",
        "a frozen batch norm is differentiated as one in training",
    ),
    (
        'back.op("Mul", back.cast(scale, dtype), inv_std)',
        'back.op("Div", back.cast(scale, dtype), inv_std)',
        "a frozen dX whose parameters nobody asks for",
        _RULES,
    ),
    (
        "axes = back.axes([axis for axis in range(back.rank(x)) if axis != 1])",
        "axes = back.axes([axis for axis in range(back.rank(x)) if axis != 0])",
        "samples for channels",
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
    ("back.constant(2, dtype)", "back.constant(1, dtype)", "a variance that the loss reads", _RULES),
    ("d_var, 1 - momentum)", "d_var, momentum)", "the weight of the old statistics for that of the new", _RULES),
    (
        "(dY, x, scale, mean, inv_std)",
        "(dY, x, scale, inv_std, mean)",
        "a layer norm's mean and inv_std are exchanged",
    ),
)

RULES = (
    of(
        "bngrad/autodiff/rules/arithmetic.py",
        (
            "return for_each_input(back, lambda _: back.dY)",
            'return for_each_input(back, lambda _: back.op("Neg", back.dY))',
            "-dY through a sum",
        ),
        (
            'back.op("Neg", back.dY) if index else back.dY',
            "back.dY",
            "a difference's second operand without its sign",
        ),
        ("back.x(1 - index)", "back.x(index)", "a product's own operand"),
        ("like(back, exponent - 1, a)", "like(back, exponent, a)", "a power that is not one less"),
        (
            "scaled = back.times(back.dY, like(back, exponent, a))",
            "scaled = back.times(back.dY, like(back, 2, a))",
            "a power's factor",
        ),
        (
            'share = back.op("Div", back.dY, like(back, len(back.node.inputs), back.dY))',
            'share = back.op("Div", back.dY, like(back, 2, back.dY))',
            "a mean of two, however many they are",
            _RULES,
        ),
    )
    + of(
        "bngrad/autodiff/rules/unary.py",
        ("like(back, 0.5, back.dY)", "like(back, 2.0, back.dY)", "a root's factor"),
        ("back.times(back.dY, back.y(), singular=True)", "back.times(back.dY, back.x(0), singular=True)", "exp'"),
        ("_over(back, back.dY, back.x(0))", "_over(back, back.dY, back.y())", "log'"),
        ('back.op("Sign", back.x(0))', 'back.op("Sign", back.dY)', "the sign of dY"),
        ("2 / math.sqrt(math.pi)", "1 / math.sqrt(math.pi)", "half the slope of erf", _RULES),
    )
    + of(
        "bngrad/autodiff/rules/activation.py",
        (
            'back.attribute("alpha", 0.01) >= 0',
            'back.attribute("alpha", 0.01) < 0',
            "the sign of a leaky ReLU's output",
            ("tests/autodiff/test_elementwise_values.py", *_RULES),
        ),
        (
            '_of_exponential(back, back.attribute("alpha", 1.0), 1.0)',
            "_of_exponential(back, 1.0, 1.0)",
            "elu's alpha",
        ),
        ('back.op("Sigmoid", back.x(0)))]', 'back.op("Tanh", back.x(0)))]', "softplus'"),
        ('"none": "GeluGrad"', '"none": "FastGeluGrad"', "the approximation for the function"),
    )
    + of(
        "bngrad/autodiff/backward.py",
        ("if self.unbounded or singular:", "if singular:", "a mask times infinity", _SINGULAR),
        ("if singular:", "if not singular:", "no guard at a singular point", _SINGULAR),
    )
    + of(
        "bngrad/autodiff/walk.py",
        ("if back.unbounded or is_singular(node):", "if back.unbounded:", "nothing is singular", _SINGULAR),
    )
    + of(
        "bngrad/autodiff/rules/matrix.py",
        (
            'dA = back.op("Gemm", dY, b, alpha=alpha, transA=0',
            'dA = back.op("Gemm", dY, b, alpha=1.0, transA=0',
            "alpha in dA",
        ),
        ("like(back, beta, dY)", "like(back, alpha, dY)", "alpha for beta"),
        (
            'return back.op("Gemm", *rows, transA=1)',
            'return back.op("Gemm", *rows, transA=1, alpha=2.0)',
            "twice dB",
        ),
        (
            "perm=[*batch, column, row]",
            "perm=[*batch, row, column]",
            "no matrix of a batch is transposed",
            _RULES,
        ),
    )
    + of(
        "bngrad/autodiff/rules/reduction.py",
        ("count, scale_down=1)", "count, scale_down=0)", "a mean that multiplies"),
        (
            'share = back.op("Div", back.cast(dY, dtype), _sum_again(back, back.cast(hit, dtype)))',
            "share = back.cast(dY, dtype)",
            "all of dY to each of the largest",
            ("tests/autodiff/test_reduction_rules.py", *_RULES),
        ),
        (
            'twice = back.op("Mul", back.dY, like(back, 2, back.dY))',
            "twice = back.dY",
            "a sum of squares without its 2",
            _RULES,
        ),
    )
    + of(
        "bngrad/autodiff/rules/loss.py",
        (
            '"SoftmaxGrad_13", back.dY, back.y(), axis=back.attribute("axis", -1)',
            '"SoftmaxGrad_13", back.dY, back.y(), axis=0',
            "a softmax along the batch",
        ),
        (
            'back.microsoft("SoftmaxCrossEntropyLossGrad", *inputs, **back.attributes())',
            'back.microsoft("SoftmaxCrossEntropyLossGrad", *inputs)',
            "any loss is a mean",
        ),
    )
    + of(
        "bngrad/autodiff/rules/selection.py",
        ("if index == 1 else", "if index == 2 else", "Where's branches are exchanged"),
        ('back.op("GreaterOrEqual", x, low)', 'back.op("LessOrEqual", x, low)', "a clip lets through below"),
    )
    + of(
        "bngrad/autodiff/rules/shape.py",
        (
            "perm=sorted(range(len(perm)), key=list(perm).__getitem__)",
            "perm=perm",
            "a permutation for its inverse",
        ),
    )
    + of(
        "bngrad/graph/broadcasting.py",
        (
            "make.int64(missing), keepdims=0)",
            "make.int64(missing[:1]), keepdims=0)",
            "a sum over one of the missing axes",
            _RULES,
        ),
        ("if mine == 1 != whole:", "if mine == whole != 1:", "sums along the axes that were not repeated"),
    )
)

BUILDER = of(
    "bngrad/autodiff/prepare.py",
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
        "a factor is folded into the scale alone",
    ),
)

RULE_MUTANTS = [*OPSET, *DOOR, *NORM_RULES, *RULES, *BUILDER]
