"""Mutants of the passes: lowerings to standard ONNX, imports of other systems, attributes and their defaults."""

from __future__ import annotations

from metamorphic.mutants import of
from metamorphic.precision_mutants import PRECISION_MUTANTS
from metamorphic.quantize_mutants import QUANTIZE_MUTANTS

_PASSES = "tests/passes"
_GRADIENTS = "tests/autodiff/test_rules.py::test_gradients"
_RECOGNIZE = f"{_PASSES}/decomposed/test_recognize.py"
_CONV = (f"{_PASSES}/test_lower_convolution.py::test_every_form_is_the_gradient",)
_POOL = (f"{_PASSES}/test_lower_pooling.py::test_average_pool",)

LOWER = (
    of(
        "bngrad/passes/lower/activation.py",
        (
            'return [site.op("Mul", dY, site.cast(positive, dtype_of(y)))]',
            'return [site.op("Mul", y, site.cast(positive, dtype_of(y)))]',
            "a ReLU's gradient is its output",
        ),
        (
            'like(site, site.attribute("alpha", 0.01), y)',
            "like(site, 0.01, y)",
            "alpha is ignored",
            (f"{_GRADIENTS}[activation: leaky-relu]",),
        ),
        (
            'site.op("Sub", like(site, 1, y), y))]',
            'site.op("Sub", like(site, 2, y), y))]',
            "the derivative of sigmoid",
        ),
        (
            'site.op("Sub", like(site, 1, y), site.op("Mul", y, y)))]',
            'site.op("Sub", like(site, 1, y), y))]',
            "the derivative of tanh",
        ),
        (
            's = site.op("Mul", x, like(site, math.sqrt(0.5), x))',
            's = site.op("Mul", x, like(site, 0.5, x))',
            "the derivative of Gelu",
        ),
    )
    + of(
        "bngrad/passes/lower/arithmetic.py",
        (
            'dB = site.op("Neg", site.op("Mul", dA, site.op("Div", a, b)))',
            'dB = site.op("Mul", dA, site.op("Div", a, b))',
            "dB of a quotient is not negated",
            (f"{_GRADIENTS}[elementwise: div-same]",),
        ),
    )
    + of(
        "bngrad/passes/lower/pooling.py",
        (
            'site.op("Mul", y, site.op("Div", number(kernel_size), counts))',
            "y",
            "an average over padding divides by all elements",
            _POOL,
        ),
        (
            "number(kernel_size) if counts is None else counts",
            "number(kernel_size)",
            "an average at the border counts the padding",
        ),
        (
            'axis=0, reduction="add")',
            'axis=0, reduction="none")',
            "overlapping windows overwrite each other",
            ("tests/passes/test_lower_pooling.py",),
        ),
    )
    + of(
        "bngrad/passes/lower/loss.py",
        (
            'site.op("Sub", dY, projection)',
            'site.op("Add", dY, projection)',
            "the softmax's projection has the wrong sign",
        ),
        ("site.constant(-1, dtype)", "site.constant(-2, dtype)", "the label counts twice"),
    )
    + of(
        "bngrad/graph/class_labels.py",
        (
            'make.op("Gather", make.cast(weights, dtype), classes)',
            'make.op("Gather", make.cast(weights, dtype), make.int64(0))',
            "every sample has the weight of class 0",
        ),
        ('if reduction == "mean":', 'if reduction != "none":', "a sum is divided like a mean"),
    )
    + of(
        "bngrad/passes/lower/normalization.py",
        (
            'of_xhat = site.op("Sub", of_xhat, mean(g))',
            'of_xhat = site.op("Sub", of_xhat, g)',
            "a layer norm subtracts g and not its mean",
        ),
        (
            "axes[:axis], keepdims=False) if axes[:axis] else value",
            "axes[:1], keepdims=False) if axes[:axis] else value",
            "dscale is reduced only over the first axis",
        ),
    )
    + of(
        "bngrad/passes/lower/sliding.py",
        (
            "begin = [axis.begin or 0 for axis in windows.axes]",
            "begin = [axis.end or 0 for axis in windows.axes]",
            "padding at the wrong end",
            _CONV,
        ),
    )
    + of(
        "bngrad/passes/lower/geometry.py",
        (
            "return (out - 1) * stride + length - size",
            "return (out - 1) * stride + length - size - 1",
            "padding at the end",
        ),
    )
    + of(
        "bngrad/passes/lower/data_gradient.py",
        (
            'w = site.op("Gather", w, site.int64(list(reversed(range(kernel_size)))), axis=1)',
            'w = site.op("Gather", w, site.int64(list(range(kernel_size))), axis=1)',
            "the kernel in forward order in dX",
            _CONV,
        ),
    )
    + of(
        "bngrad/passes/lower/weight_gradient.py",
        (
            'dW = site.op("Gather", dW, site.int64(list(reversed(range(kernel_size)))), axis=1)',
            'dW = site.op("Gather", dW, site.int64(list(range(kernel_size))), axis=1)',
            "the kernel in forward order in dW",
            _CONV,
        ),
        (
            'return site.op("Transpose", dW, perm=[rank, rank + 1, *range(rank)])',
            'return site.op("Transpose", dW, perm=[rank, rank + 1, *reversed(range(rank))])',
            "rows for columns in dW",
        ),
    )
    + of(
        "bngrad/passes/lower/convolution.py",
        (
            "axes = [0, *range(2, 2 + operands.windows.rank)]",
            "axes = [0, *range(3, 2 + operands.windows.rank)]",
            "dB keeps rows",
        ),
    )
)

PASSES = (
    of(
        "bngrad/passes/imports/ort.py",
        (
            'operands.apply("BatchNormalizationGrad", training_mode=1)',
            'operands.apply("BatchNormalizationGrad", training_mode=0)',
            "a gradient in training mode becomes frozen",
        ),
    )
    + of(
        "bngrad/passes/imports/onnx.py",
        ('epsilon=attributes.get("epsilon") or 1e-5,', "epsilon=1e-5,", "epsilon is ignored"),
        ('momentum=attributes.get("momentum") or 0.9,', "momentum=0.9,", "momentum is ignored"),
        (
            "unbiased_running_var=int(node.unbiased_running_var),",
            "unbiased_running_var=int(not node.unbiased_running_var),",
            "the running variance is unbiased by default",
        ),
    )
    + of(
        "bngrad/passes/imports/foreign_node.py",
        (
            "for dimension in range(rank) if dimension != channels",
            "for dimension in range(rank - 1) if dimension != channels",
            "the last dimension is not reduced",
            (f"{_PASSES}/test_import_ort.py",),
        ),
    )
    + of(
        "bngrad/passes/optimize/fuse_relu.py",
        (
            "operands = [*relu, *node.inputs[1:]]",
            "operands = [*reversed(relu), *node.inputs[1:]]",
            "Z and dZ are exchanged",
        ),
    )
    + of(
        "bngrad/passes/optimize/recompute.py",
        (
            'maker.op("Min", maker.int64([0] * len(x.shape)), maker.op("Size", gradient))',
            "maker.int64([0] * len(x.shape))",
            "the copy does not wait for a gradient",
            (f"{_PASSES}/test_recompute.py::test_one_copy_for_all_readers",),
        ),
        (
            "return value not in self._gradients and bool(self.readers(value))",
            "return value not in self._gradients",
            "every value that is not copied counts as kept",
            (f"{_PASSES}/test_recompute.py::test_values_that_are_kept",),
        ),
        (
            "if present and len(present) == len(readers) else None",
            "if readers else None",
            "a copy waits for no gradient",
            (f"{_PASSES}/test_recompute.py::test_values_that_are_kept",),
        ),
    )
    + of(
        "bngrad/passes/optimize/relu_gradients.py",
        (
            "dZ, other = (a, b) if sign is not None and sign[1] else (b, a)",
            "dZ, other = (b, a) if sign is not None and sign[1] else (a, b)",
            "the branches of a mask are exchanged",
            (_RECOGNIZE,),
        ),
        ('"LessOrEqual": (False, None),', '"LessOrEqual": (True, None),', "a mask is inverted", (_RECOGNIZE,)),
    )
    + of(
        "bngrad/passes/imports/decomposed/split_form.py",
        (
            "through = scaled(add(dbias_of(algebra, group), projection), 1 / count, times(ONE, sizes, -1))",
            "through = scaled(projection, 1 / count, times(ONE, sizes, -1))",
            "a dX without the mean of dY is one",
            (_RECOGNIZE,),
        ),
        (
            "a = scaled(by_product, -count, times(sizes, ((variance.atom, WHOLE),)))",
            "a = scaled(by_product, count, times(sizes, ((variance.atom, WHOLE),)))",
            "the sign of dX",
            (_RECOGNIZE,),
        ),
    )
    + of(
        "bngrad/passes/imports/decomposed/graph_rewrite.py",
        ("if difference > tolerance_of(value):", "if difference < 0:", "nothing is proven", (_RECOGNIZE,)),
    )
    + of(
        "bngrad/passes/optimize/chain_sums.py",
        (
            'total = site.op("Add", total, value)',
            'total = site.op("Max", total, value)',
            "the maximum of contributions instead of their sum",
        ),
    )
    + of(
        "bngrad/graph/batch_norm_terms.py",
        ("emit.constant(epsilon, dtype))", "emit.constant(0.0, dtype))", "a variance without epsilon"),
        (
            'emit.op("Sub", new, old), emit.constant(factor, dtype)',
            'emit.op("Sub", old, new), emit.constant(factor, dtype)',
            "a running value moves away from the new one",
            (f"{_PASSES}/test_import_tensorflow_forward.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/tensorflow/forward.py",
        (
            "momentum=0.0 if exact else 1.0 - factor,",
            "momentum=0.0 if exact else factor,",
            "TensorFlow's factor is used as momentum",
            (f"{_PASSES}/test_import_tensorflow_forward.py",),
        ),
        (
            "unbiased_running_var=int(not exact),",
            "unbiased_running_var=int(exact),",
            "TensorFlow's running variance is biased",
            (f"{_PASSES}/test_import_tensorflow_forward.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/foreign_node.py",
        (
            "channels = rank - 1 if self.channels_last else 1",
            "channels = 1 if self.channels_last else rank - 1",
            "NHWC and NCHW are exchanged",
            (f"{_PASSES}/test_import_tensorflow_grad.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/miopen/forward.py",
        (
            "momentum=0.0 if spelled_out else 1 - factor,",
            "momentum=0.0 if spelled_out else factor,",
            "MIOpen's factor is used as momentum",
            (f"{_PASSES}/test_import_miopen_forward.py",),
        ),
        (
            "unbiased_running_var=1,",
            "unbiased_running_var=0,",
            "MIOpen's running variance is biased",
            (f"{_PASSES}/test_import_miopen_forward.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/miopen/backward.py",
        (
            "{**computed, **parameters}, training_mode=1",
            "{**computed, **parameters}, training_mode=0",
            "MIOpen's gradient becomes frozen",
            (f"{_PASSES}/test_import_miopen_backward.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/directml.py",
        (
            "statistics, training_mode=0",
            "statistics, training_mode=1",
            "DirectML's gradient is in training mode",
            (f"{_PASSES}/test_import_directml.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/aten/nodes.py",
        (
            '"save_invstd": "inv_std",',
            '"save_invstd": "variance",',
            "PyTorch's saved invstd is ignored",
            (f"{_PASSES}/test_import_aten.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/aten/gradients.py",
        (
            'operands.frozen_statistics("running_mean", "running_var",',
            'operands.frozen_statistics("running_var", "running_mean",',
            "PyTorch's running mean and variance are exchanged",
            (f"{_PASSES}/test_import_aten.py",),
        ),
    )
    + of(
        "bngrad/passes/imports/ngraph.py",
        (
            'frozen_statistics("mean", "variance", only_epsilon(node), dtype)',
            'frozen_statistics("mean", "variance", 0.0, dtype)',
            "nGraph's epsilon is ignored",
            (f"{_PASSES}/test_import_ngraph.py",),
        ),
    )
)

_OPTIMIZER = (f"{_PASSES}/test_lower_optimizer.py",)
_API = "tests/ort_training/api"

ORT_TRAINING = (
    of(
        "bngrad/passes/lower/optimizer.py",
        (
            'size, epsilon = site.op("Mul", size, kept), site.op("Div", epsilon, deviation)',
            'size, epsilon = size, site.op("Div", epsilon, deviation)',
            "AdamW's decay is only of the old weight",
            _OPTIMIZER,
        ),
        (
            'site.op("Add", norm, site.constant(1e-6, _FLOAT))',
            "norm",
            "clipping divides only by the norm",
            _OPTIMIZER,
        ),
        (
            'make.op("Where", go, *pair)',
            'make.op("Where", go, *pair[::-1])',
            "a signal means its opposite",
            _OPTIMIZER,
        ),
    )
    + of(
        "bngrad/passes/lower/tensor_sequences.py",
        ('site.op("Max", *lengths)', "lengths[0]", "a longer sequence of gradients is accepted", _OPTIMIZER),
    )
    + of(
        "bngrad/ort_training/api/stateful_session.py",
        (
            "self._binding.bind_output(name)",
            "pass",
            "outputs are not bound",
            (f"{_API}/test_module.py",),
        ),
        ("np.copyto(array, following)", "pass", "state stays as it is", (f"{_API}/test_module.py",)),
    )
    + of(
        "bngrad/ort_training/api/module.py",
        ("self._reset[...] = False", "pass", "gradients are reset at every step", (f"{_API}/test_module.py",)),
    )
    + of(
        "bngrad/ort_training/api/optimizer.py",
        ("self._group.step = count", "pass", "updates are not counted", (f"{_API}/test_optimizer.py",)),
    )
    + of(
        "bngrad/ort_training/api/user_inputs.py",
        (
            "sizes.setdefault(dimension.value, size) == size",
            "True",
            "labels of another batch size are accepted",
            (f"{_API}/test_module.py",),
        ),
    )
)

_FOLD = ("tests/training/test_fold_batch_norm.py",)
_GHOST = ("tests/training/test_ghost_batches.py",)
BATCH_NORM_EDITS = (
    of(
        "bngrad/training/fold_batch_norm.py",
        ("return gain, bias - mean * gain", "return gain, bias", "the running mean is not subtracted", _FOLD),
        ("bias = layer.bias * gain + shift", "bias = layer.bias + shift", "a bias is not scaled", _FOLD),
    )
    + of(
        "bngrad/training/foldable_layer.py",
        (
            'return any(read_attribute(layer, "pads", [0]))',
            'return not read_attribute(layer, "pads", [0])',
            "a layer with padding takes the shift of the batch norm before it",
            _FOLD,
        ),
    )
    + of(
        "bngrad/autodiff/ghost_batches.py",
        ("int(unbiased)", "0", "the running variance of ghost batches is biased", _GHOST),
        ('"momentum", 0.9', '"decay", 0.9', "ghost batches have the default momentum", _GHOST),
        ("if batch is not None and batch % size:", "if False:", "a batch of another size is not refused", _GHOST),
    )
)

PASS_MUTANTS = [*LOWER, *PASSES, *ORT_TRAINING, *PRECISION_MUTANTS, *QUANTIZE_MUTANTS, *BATCH_NORM_EDITS]
