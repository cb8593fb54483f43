"""Sources of a gradient, a loss or an update in Keras: models whose steps have them, and refused ones.

Imported where Keras is. The rows are those of docs/reference/gradient-sources.md.
"""

import warnings
from importlib import import_module
from unittest import mock

import keras
import numpy as np
import tensorflow as tf
import tf2onnx

import bngrad.keras

conversions, convert, marks = (
    import_module(f"bngrad.keras.{name}") for name in ("conversions", "convert", "marks")
)

L, ops = keras.layers, keras.ops
rng = np.random.default_rng(0)
X = rng.standard_normal((8, 6)).astype(np.float32)
Y = rng.standard_normal((8, 4)).astype(np.float32)
MSE = keras.losses.MeanSquaredError()
TAKEN_OVER = {}
"""By name: a function that returns a model, or (model, loss, x, y)."""
REFUSED = {}
"""The same for refused models."""


def taken_over(name):
    return lambda function: TAKEN_OVER.setdefault(name, function)


def refused(name):
    return lambda function: REFUSED.setdefault(name, function)


class Apply(L.Layer):
    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, inputs):
        return self.function(inputs)


def between(*layers):
    """A model with layers in the middle."""
    return keras.Sequential([keras.Input((6,)), L.Dense(5), *layers, L.Dense(4)])


def applied(function):
    return lambda: between(Apply(function))


def with_gradient(value, gradient):
    """A layer with a gradient of its own."""
    return applied(tf.custom_gradient(lambda h: (value(h), gradient)))


@ops.custom_gradient
def halved(h):
    def gradient(*arguments, upstream=None):
        return 0.5 * (arguments[0] if upstream is None else upstream)

    return h * 1.0, gradient


@tf.custom_gradient
def two_results(h):
    return (tf.sin(h), h * h), lambda first, second: 2 * first + 3 * second * h


def of_tokens(*layers, mask_zero=True):
    model = keras.Sequential([keras.Input((5,), dtype="int32"), L.Embedding(9, 6, mask_zero=mask_zero), *layers])
    return model, MSE, rng.integers(0, 9, (8, 5)).astype(np.int32)


for name, function in {
    "keras.ops.stop_gradient": lambda h: h * h + ops.stop_gradient(h),
    "tf.stop_gradient": lambda h: h * tf.stop_gradient(tf.sigmoid(h)),
    "straight-through": lambda h: h + ops.stop_gradient(ops.round(h) - h),
    "stop in a tf.function": tf.function(lambda h: h * tf.stop_gradient(h)),
    "keras.ops.custom_gradient": halved,
    "several results": lambda h: tf.add(*two_results(h)),
    "recompute_grad": tf.recompute_grad(tf.sin),
    "grad_pass_through": tf.grad_pass_through(tf.round),
    "clip_by_norm": lambda h: tf.clip_by_norm(h, 1.0),
    "moments": lambda h: h + tf.nn.moments(h, [1], keepdims=True)[1],
    "log1p": lambda h: tf.math.log1p(tf.square(h)),
    "expm1": lambda h: tf.math.expm1(0.1 * h),
    "erfc": tf.math.erfc,
    "erfinv": lambda h: tf.math.erfinv(tf.tanh(h)),
    "xlogy": lambda h: tf.math.xlogy(tf.nn.relu(h), tf.nn.relu(h)) + tf.math.xlog1py(h, h * h),
    "xdivy": lambda h: tf.math.xdivy(tf.nn.relu(h), tf.nn.relu(h)),
}.items():
    TAKEN_OVER[name] = applied(function)
TAKEN_OVER |= {
    "cond": applied(lambda h: ops.cond(ops.sum(h) > 0, lambda: h * 2, lambda: -h)),
    "while": applied(lambda h: ops.while_loop(lambda i, _: i < 3, lambda i, a: (i + 1, a * 2), (0, h))[1]),
    "RNN without unroll": lambda: keras.Sequential([keras.Input((6,)), L.Reshape((3, 2)), L.LSTM(4)]),
    "gradient reversal": with_gradient(tf.identity, lambda d: -d),
    "masked gradient": with_gradient(tf.round, lambda d: tf.where(tf.range(5) < 3, d, tf.zeros_like(d))),
    "gradient of a product": with_gradient(
        lambda h: h @ tf.ones((5, 5)), lambda d: d @ tf.constant(2.0, shape=(5, 5))
    ),
}
REFUSED |= {
    "clipped gradient": with_gradient(tf.identity, lambda d: tf.clip_by_value(d, -0.01, 0.01)),
    "normalized gradient": with_gradient(tf.identity, lambda d: d / (1 + tf.norm(d))),
    "gradient with noise": with_gradient(tf.identity, lambda d: d + 0.1),
    "constant gradient": with_gradient(tf.identity, tf.ones_like),
    "custom_gradient in a tf.function": applied(
        tf.function(tf.custom_gradient(lambda h: (tf.identity(h), lambda d: -d)))
    ),
    "fake_quant": applied(lambda h: tf.quantization.fake_quant_with_min_max_args(h, -3.0, 3.0)),
    "quantize_and_dequantize": applied(lambda h: tf.quantization.quantize_and_dequantize_v2(h, -3.0, 3.0)),
    "PreventGradient": applied(lambda h: tf.raw_ops.PreventGradient(input=h, message="no")),
    "random draw": applied(lambda h: h + tf.random.normal(tf.shape(h))),
    "Python": applied(lambda h: tf.ensure_shape(tf.numpy_function(abs, [h], tf.float32), h.shape)),
    "bfloat16": applied(lambda h: tf.cast(tf.cast(h, tf.bfloat16), tf.float32)),
}


@taken_over("added loss")
def added_loss():
    class Penalty(L.Layer):
        def call(self, inputs):
            self.add_loss(0.1 * ops.mean(inputs * inputs))
            return inputs

    return between(Penalty())


@taken_over("regularizers")
def regularizers():
    return between(
        L.Dense(5, activity_regularizer="l2", kernel_regularizer="l1", bias_regularizer="l2"),
        L.ActivityRegularization(0.1, 0.1),
    )


class InTraining(L.Layer):
    """A layer that depends on `training`, with a batch norm that never does."""

    def __init__(self):
        super().__init__()
        self.norm = L.BatchNormalization(momentum=0.7)

    def call(self, inputs, training=None):
        if training:
            self.add_loss(ops.mean(inputs * inputs))
        return self.norm(inputs * 2 if training else inputs - 1, training=True)


TAKEN_OVER |= {
    "branch on training": lambda: between(InTraining(), L.BatchNormalization()),
    "integer division": applied(
        lambda h: h * tf.cast(tf.cast(h * 9, "int32") % 4 + tf.cast(h * 9, "int32") // 3, "float32")
    ),
    "where of NaN": applied(lambda h: ops.where(h > 0, ops.log(ops.maximum(h, 0)), 0.5 * h)),
    "fixed batch": lambda: keras.Sequential(
        [keras.Input(batch_shape=(8, 6)), Apply(lambda h: h * h.shape[0]), L.Dense(4)]
    ),
}


def overridden_compute_loss():
    class Model(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):  # noqa: ARG002
            return 3 * ops.mean(ops.abs(y - y_pred))

    model = Model([keras.Input((6,)), L.Dense(4)])
    model.compile(optimizer=keras.optimizers.SGD(1.0))
    return model, None


TAKEN_OVER["overridden compute_loss"] = overridden_compute_loss


@taken_over("remat")
def remat():
    layer = L.Dense(5)
    layer.build((None, 5))
    return between(Apply(keras.remat(ops.tanh)), layer)


@taken_over("metric in a layer")
def metric_in_a_layer():
    class Measure(L.Layer):
        def __init__(self):
            super().__init__()
            self.mean = keras.metrics.Mean()

        def call(self, inputs):
            self.mean.update_state(inputs)
            return inputs

    return between(Measure())


@taken_over("frozen variable")
def frozen_variable():
    model = between(L.BatchNormalization())
    model.layers[1].gamma.trainable = False
    model.layers[0].bias.trainable = False
    return model


@taken_over("frozen nested model")
def frozen_nested_model():
    inner = keras.Sequential([keras.Input((5,)), L.Dense(5), L.BatchNormalization()])
    inner.trainable = False
    return between(inner, L.BatchNormalization())


@taken_over("one batch norm in both modes")
def batch_norm_in_both_modes():
    norm, x = L.BatchNormalization(momentum=0.7), keras.Input((6,))
    y = norm(x, training=False) + norm(2 * x, training=True) + norm(3 * x, training=False) * norm(4 * x + 1)
    return keras.Model(x, L.Dense(4)(y))


@taken_over("a batch norm of two inputs")
def batch_norm_of_two_inputs():
    norm, x = L.BatchNormalization(momentum=0.7), keras.Input((6,))
    return keras.Model(x, L.Dense(4)(L.Concatenate()([norm(x + 5), norm(x)])))


@taken_over("TimeDistributed")
def time_distributed():
    norm = L.TimeDistributed(L.BatchNormalization(momentum=0.7))
    return keras.Sequential([keras.Input((6,)), L.Reshape((3, 2)), norm, L.Flatten(), L.Dense(4)])


@taken_over("nested model called twice")
def nested_model_called_twice():
    inner, x = keras.Sequential([L.Dense(6), L.BatchNormalization(momentum=0.7)]), keras.Input((6,))
    return keras.Model(x, L.Dense(4)(inner(inner(x) * 2) + inner(x)))


@taken_over("model called in the loss")
def model_called_in_the_loss():
    model = keras.Sequential([keras.Input((6,)), L.Dense(6), L.BatchNormalization(momentum=0.7)])

    def loss(y, y_pred):
        return ops.mean((y[:, :1] - y_pred) ** 2) + ops.mean(model(y_pred + 1, training=True) ** 2)

    return model, loss


@taken_over("mask of the loss")
def mask_of_the_loss():
    model, loss, x = of_tokens(L.Dense(4))
    return model, loss, x, rng.standard_normal((8, 5, 4)).astype(np.float32)


@taken_over("mask of an RNN")
def mask_of_an_rnn():
    return of_tokens(L.SimpleRNN(4, unroll=True))


@taken_over("mixed_float16")
def mixed_float16():
    policy = keras.DTypePolicy("mixed_float16")
    return between(
        *(layer(dtype=policy) for layer in (L.BatchNormalization, L.ReLU)), L.Activation("gelu", dtype=policy)
    )


@taken_over("grouped convolution")
def grouped_convolution():
    return keras.Sequential(
        [keras.Input((6,)), L.Reshape((3, 2)), L.Conv1D(4, 2, groups=2), L.Flatten(), L.Dense(4)]
    )


@taken_over("binary losses")
def binary_losses():
    model = keras.Sequential([keras.Input((6,)), L.Dense(4, activation="sigmoid")])
    losses = keras.losses.BinaryCrossentropy(label_smoothing=0.1), keras.losses.BinaryFocalCrossentropy()
    return model, lambda y, y_pred: losses[0](y, y_pred) + losses[1](y, y_pred), X, (Y > 0).astype(np.float32)


@taken_over("logits far apart")
def logits_far_apart():
    """The exponential of the smaller one is 0, or is not normal."""
    model, cross_entropy = (
        keras.Sequential([keras.Input((6,)), L.Dense(4)]),
        keras.losses.SparseCategoricalCrossentropy,
    )
    loss = cross_entropy(from_logits=True, ignore_class=3)
    return model, lambda y, y_pred: loss(y, y_pred + tf.constant([0, 90, 110, -110.0])), X, np.arange(8) % 4


@taken_over("options of a compiled optimizer")
def compiled_optimizer():
    model = keras.Sequential([keras.Input((6,)), L.Dense(4)])
    model.compile(keras.optimizers.SGD(1.0), MSE, loss_weights=[0.5])
    return model, None


@refused("constraint")
def constraint():
    return between(L.Dense(5, kernel_constraint="non_neg"))


@refused("changed variable")
def changed_variable():
    return between(L.SpectralNormalization(L.Dense(5)))


@refused("changed counter")
def changed_counter():
    class Counter(L.Layer):
        def build(self, shape):  # noqa: ARG002
            self.count = self.add_weight(shape=(), dtype="int32", initializer="zeros", trainable=False)

        def call(self, inputs):
            self.count.assign_add(1)
            return inputs

    return between(Counter())


@refused("changed tf.Variable")
def changed_tf_variable():
    variable = tf.Variable(1.0)
    return applied(lambda h: h * variable.assign_add(1.0))()


@refused("stateful RNN")
def stateful_rnn():
    x = keras.Input(batch_shape=(8, 3, 2))
    model = keras.Model(x, L.GRU(4, stateful=True, unroll=True)(x))
    return model, MSE, X.reshape(8, 3, 2)


@refused("noise layer")
def noise_layer():
    return between(L.GaussianNoise(0.1))


@refused("quantized layer")
def quantized_layer():
    model = between()
    model.layers[0].quantize("int8")
    return model


@refused("mixed_bfloat16")
def mixed_bfloat16():
    return between(L.Dense(5, dtype="mixed_bfloat16"))


@refused("call that is a tf.function")
def call_in_a_tf_function():
    class Layer(L.Layer):
        def __init__(self):
            super().__init__()
            self.dense = L.Dense(5)

        def build(self, shape):
            self.dense.build(shape)

        @tf.function
        def call(self, inputs):
            return self.dense(inputs)

    return between(Layer())


@refused("weights read in a custom_gradient")
def weights_read_in_a_custom_gradient():
    class Scale(L.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=shape[1:])

        def call(self, inputs):
            def gradient(d, variables=()):
                return 2 * d, [tf.zeros_like(variable) for variable in variables]

            return tf.custom_gradient(lambda h: (h * self.scale, gradient))(inputs)

    return between(Scale())


@refused("no gradient")
def no_gradient():
    return applied(ops.stop_gradient)()


@refused("overridden train_step")
def overridden_train_step():
    class Model(keras.Sequential):
        def train_step(self, data):
            return super().train_step(data)

    model = Model([keras.Input((6,)), L.Dense(4)])
    model.compile(loss=MSE)
    return model, None


@refused("loss that tf2onnx does not convert")
def loss_that_is_not_converted():
    model = keras.Sequential([keras.Input((6,)), L.Dense(40), L.Reshape((10, 4))])
    return model, keras.losses.CTC(), X, rng.integers(1, 4, (8, 3))


def parts(entry):
    """The model, the loss and the example of an entry."""
    model, loss, x, y = (*entry, None, None, None)[:4] if isinstance(entry, tuple) else (entry, MSE, None, None)
    x = X if x is None else x
    return model, loss, x, Y if y is None else y


def one_step(name):
    """The distance of a step of SGD with the rate 1 from Keras's: the loss, and the worst variable."""
    keras.utils.set_random_seed(5)
    model, loss, x, y = parts(TAKEN_OVER[name]())
    before = {variable.path: np.array(variable) for variable in model.variables}
    trainer = bngrad.Trainer(bngrad.keras.training_step(model, loss, (x, y)), learning_rate=1.0)
    unchanged = all(np.array_equal(before[variable.path], variable) for variable in model.variables)
    evaluated = trainer.evaluate(x=x, y=y)["y_pred"]
    inference = float(np.abs(evaluated - np.asarray(model(x, training=False))).max())
    for variable in model.variables:  # a batch norm that is always in training mode has changed its statistics
        variable.assign(before[variable.path])
    ours = trainer.step(x=x, y=y)
    if loss is not None:
        model.compile(keras.optimizers.SGD(1.0), loss)
    theirs = float(np.ravel(model.train_on_batch(x, y))[0])
    state = {path: trainer.state_dict()[path] for path in trainer.info.names("weight", "running_statistic")}
    after = {variable.path: np.array(variable) for variable in model.variables}
    return {
        "unchanged": unchanged,
        "inference": inference,
        "loss": abs(ours - theirs) / max(abs(theirs), 1e-3),
        "off": {path: float(np.abs(state[path] - after[path]).max()) for path in state},
        "left": [path for path in after if path not in state and not np.array_equal(before[path], after[path])],
    }


def refusal(name):
    try:
        model, loss, x, y = parts(REFUSED[name]())
        bngrad.keras.training_step(model, loss, (x, y))
    except bngrad.BngradError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def lost(name):
    """The messages where the export loses something, with the comparison with TensorFlow and without."""
    model, loss, x, y = parts(TAKEN_OVER[name]())
    messages = []
    for check in (True, False):
        with LOSING[name]():
            try:
                bngrad.keras.training_step(model, loss, (x, y), check=check)
                messages.append("nothing")
            except bngrad.BngradError as error:
                messages.append(f"{type(error).__name__}: {error}")
    return messages


def losing_stops():
    return mock.patch.object(conversions, "_stop", lambda _, node: setattr(node, "type", "Identity"))


def losing_added_losses():
    return mock.patch.object(convert, "loss_of", lambda *values, **_: values[3](values[5], values[6]))


def losing_the_order():
    return mock.patch.object(marks, "CALL", "another key")


LOSING = {
    "keras.ops.stop_gradient": losing_stops,
    "added loss": losing_added_losses,
    "a batch norm of two inputs": losing_the_order,
}


def warned():
    """The warning of a model whose methods are not called."""
    model, _, x, y = parts(overridden_compute_loss())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bngrad.keras.export(model, MSE, (x, y))
    return [str(warning.message) for warning in caught if issubclass(warning.category, bngrad.BngradWarning)]


def loaded():
    """The messages of `load_into` for parts of a state."""
    model = between(L.BatchNormalization())
    step = bngrad.keras.training_step(model, MSE, (X, Y), check=False)
    trainer = bngrad.Trainer(step, learning_rate=0.1)
    state = {path: trainer.state_dict()[path] for path in trainer.info.names("weight", "running_statistic")}
    without = {
        "one statistic": lambda path: path.endswith("moving_mean"),
        "both statistics": lambda path: "moving" in path,
        "the batch norm": lambda path: "batch_normalization" in path,
    }
    said = {}
    for name, is_left in without.items():
        try:
            bngrad.keras.load_into(model, {path: array for path, array in state.items() if not is_left(path)})
            said[name] = "nothing"
        except bngrad.InputError as error:
            said[name] = str(error)
    return said


SHAPES = {"x": (8, 6), "w": (6, 5), "v": (5, 4)}
SIGNATURE = [tf.TensorSpec(shape, tf.float32, name) for name, shape in SHAPES.items()]
ARRAYS = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
DOMAIN = "ai.onnx.converters.tensorflow"


class Converted:
    """A function of x and two weights with a hidden layer, as tf2onnx converts it."""

    def __init__(self, hidden):
        self.hidden = hidden

    def loss(self, x, w, v):
        return {"loss": tf.reduce_mean(tf.square(self.hidden(tf.tanh(x @ w)) @ v))}

    def tape(self, x, w, v):
        with tf.GradientTape() as tape:
            tape.watch([w, v])
            loss = self.loss(x, w, v)["loss"]
        gradients = tape.gradient(loss, [w, v])
        return {"w_grad": gradients[0], "v_grad": gradients[1]}

    def distance(self, function, kept, change):
        """The distance of the gradients of a converted function from those of the tape."""
        model, _ = tf2onnx.convert.from_function(
            tf.function(function, input_signature=SIGNATURE),
            SIGNATURE,
            opset=17,
            custom_ops=dict.fromkeys(kept, DOMAIN),
            extra_opset=[tf2onnx.utils.make_opsetid(DOMAIN, 1)],
        )
        names = ["w_grad", "v_grad"]
        got = bngrad.session(change(model)).run(names, ARRAYS)
        expected = self.tape(**{name: tf.constant(array) for name, array in ARRAYS.items()})
        return max(
            float(np.abs(gradient - expected[name]).max()) for name, gradient in zip(names, got, strict=True)
        )


def converted():
    """The distances by function and way; tf2onnx keeps the custom ops of one conversion for all later ones."""

    def differentiate(model):
        return bngrad.differentiate(model, loss="loss", wrt=["w", "v"])

    stop = Converted(lambda h: h * h + ops.stop_gradient(h))
    own = Converted(tf.custom_gradient(lambda h: (tf.identity(h), lambda d: -d)))
    forwards = {"stop": stop, "own": own}
    return {
        **{f"forward of {name}": case.distance(case.loss, (), differentiate) for name, case in forwards.items()},
        **{
            f"tape of {name}": case.distance(case.tape, ("TanhGrad",), bngrad.rewrite)
            for name, case in forwards.items()
        },
        "kept stop": stop.distance(stop.loss, ("StopGradient",), differentiate),
    }


def found():
    """All that the tests ask for."""
    return {
        "taken over": {name: one_step(name) for name in TAKEN_OVER},
        "refused": {name: refusal(name) for name in REFUSED},
        "lost": {name: lost(name) for name in LOSING},
        "warned": warned(),
        "loaded": loaded(),
        "converted": converted(),
    }
