"""Keras models that train as in Keras, and those that are refused; imported where Keras is."""

import keras
import numpy as np

import bngrad.keras

L = keras.layers
IMAGE = (8, 8, 1)
NETWORKS = {}
"""By name: a function that returns a model, or (model, loss, x, y)."""
REFUSED = {}
"""By name: a function of x and y that raises."""


def network(function):
    NETWORKS[function.__name__] = function
    return function


def refused(function):
    REFUSED[function.__name__] = function
    return function


def image_model(*layers):
    return keras.Sequential([keras.Input(IMAGE), *layers, L.GlobalAveragePooling2D(), L.Dense(10)])


def sequence_model(*layers):
    return keras.Sequential([keras.Input(IMAGE), L.Reshape((8, 8)), *layers, L.Dense(10)])


@network
def cnn():
    return image_model(
        *(L.Conv2D(8, 3, padding="same", use_bias=False), L.BatchNormalization(), L.ReLU(), L.MaxPooling2D()),
        *(L.Conv2D(16, 3), L.BatchNormalization(momentum=0.8, epsilon=1e-4), L.ReLU(), L.AveragePooling2D(2)),
    )


@network
def depthwise_and_separable():
    return image_model(
        *(L.DepthwiseConv2D(3, padding="same", depth_multiplier=4), L.BatchNormalization(), L.ReLU(max_value=6)),
        *(L.SeparableConv2D(8, 3, strides=2, padding="same"), L.BatchNormalization(), L.Activation("silu")),
    )


@network
def transposed_convolution():
    return image_model(
        *(L.Conv2D(8, 3, strides=2), L.BatchNormalization(), L.LeakyReLU()),
        *(L.Conv2DTranspose(4, 3, strides=2), L.BatchNormalization(), L.Activation("gelu")),
    )


@network
def axis_1():
    return image_model(L.Conv2D(8, 3), L.BatchNormalization(axis=1), L.Activation("tanh"))


@network
def axis_2():
    return image_model(L.Conv2D(8, 3), L.BatchNormalization(axis=2), L.Activation("tanh"))


@network
def no_scale_no_center():
    return image_model(L.Conv2D(8, 3), L.BatchNormalization(scale=False, center=False), L.Activation("tanh"))


@network
def no_scale():
    return image_model(L.Conv2D(8, 3), L.BatchNormalization(scale=False), L.Activation("tanh"))


@network
def batch_norm_of_dense():
    return keras.Sequential(
        [
            *(keras.Input(IMAGE), L.Flatten(), L.Dense(16, use_bias=False), L.BatchNormalization(momentum=0.9)),
            *(L.Activation("elu"), L.Dense(8), L.BatchNormalization(), L.Dense(10)),
        ]
    )


@network
def batch_norm_of_sequences():
    return sequence_model(
        L.Dense(6), L.BatchNormalization(), L.Conv1D(5, 3), L.BatchNormalization(axis=1), L.Flatten()
    )


@network
def three_dimensions():
    return keras.Sequential(
        [
            *(keras.Input(IMAGE), L.Reshape((4, 4, 4, 1)), L.Conv3D(6, 3, padding="same"), L.BatchNormalization()),
            *(L.ReLU(), L.MaxPooling3D(), L.Flatten(), L.Dense(10)),
        ]
    )


@network
def frozen_layers():
    model = image_model(
        *(L.Conv2D(8, 3), L.BatchNormalization(), L.ReLU(), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU()),
    )
    for layer in model.layers[:2]:
        layer.trainable = False
    model.layers[1].moving_mean.assign(np.linspace(-0.1, 0.1, 8))
    return model


@network
def layer_called_twice():
    image, norm = keras.Input(IMAGE), L.BatchNormalization(momentum=0.9)
    x = L.Activation("tanh")(norm(L.Conv2D(4, 3, padding="same")(image)))
    x = L.Activation("tanh")(norm(L.Conv2D(4, 3, padding="same")(x)))
    return keras.Model(image, L.Dense(10)(L.GlobalAveragePooling2D()(x)))


@network
def layer_called_twice_on_the_same():
    image, norm = keras.Input(IMAGE), L.BatchNormalization(momentum=0.9)
    x = L.Conv2D(4, 3, padding="same")(image)
    return keras.Model(image, L.Dense(10)(L.Flatten()(L.Add()([norm(x), norm(x)]))))


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.convolution, self.norms = L.Conv2D(4, 3), [L.BatchNormalization(), L.BatchNormalization()]
        self.dense, self.unused = L.Dense(10), L.Dense(3)

    def call(self, inputs, training=None):
        x = keras.ops.relu(self.norms[0](self.convolution(inputs), training=training))
        x = self.norms[1](keras.ops.mean(x, (1, 2)), training=training)
        self.unused(x)
        return self.dense(x)


@network
def subclassed():
    model = Net()
    model(np.zeros((2, *IMAGE), np.float32))
    return model


@network
def nested():
    inner = keras.Sequential([keras.Input(IMAGE), L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU()])
    return image_model(inner)


@network
def regularized():
    return image_model(
        L.Conv2D(8, 3, kernel_regularizer="l2"), L.BatchNormalization(gamma_regularizer="l1"), L.ReLU()
    )


@network
def other_normalizations():
    return image_model(L.Conv2D(8, 3), L.LayerNormalization(), L.BatchNormalization(), L.GroupNormalization(4))


@network
def attention():
    image = keras.Input(IMAGE)
    x = L.BatchNormalization()(L.Reshape((8, 8))(image))
    return keras.Model(image, L.Dense(10)(L.GlobalAveragePooling1D()(L.MultiHeadAttention(2, 4)(x, x))))


@network
def recurrent():
    return sequence_model(L.BatchNormalization(), L.LSTM(5))


@network
def recurrent_unrolled():
    return sequence_model(L.BatchNormalization(), L.GRU(5, unroll=True))


@network
def softmax_and_one_hot_labels():
    rng = np.random.default_rng(1)
    model = image_model(L.Conv2D(4, 3), L.BatchNormalization(), L.ReLU())
    model.add(L.Softmax())
    x = rng.standard_normal((16, *IMAGE)).astype(np.float32)
    y = np.eye(10, dtype=np.float32)[rng.integers(0, 10, 16)]
    return model, keras.losses.CategoricalCrossentropy(label_smoothing=0.1), x, y


@network
def compiled_loss_of_several_outputs():
    rng = np.random.default_rng(2)
    image, vector = keras.Input(IMAGE, name="image"), keras.Input((3,), name="vector")
    x = L.GlobalAveragePooling2D()(L.BatchNormalization()(L.Conv2D(4, 3)(image)))
    x = L.Concatenate()([x, L.BatchNormalization()(vector)])
    model = keras.Model([image, vector], [L.Dense(10)(x), L.Dense(1)(x)])
    losses = [keras.losses.SparseCategoricalCrossentropy(from_logits=True), "mse"]
    model.compile(optimizer=keras.optimizers.SGD(0.05), loss=losses, loss_weights=[1.0, 0.5])
    data = [rng.standard_normal((16, *IMAGE)).astype(np.float32), rng.standard_normal((16, 3)).astype(np.float32)]
    return model, None, data, [rng.integers(0, 10, 16), rng.standard_normal((16, 1)).astype(np.float32)]


def step(model, x, y, loss=None):
    loss = loss or keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    return bngrad.keras.training_step(model, loss, (x, y))


@refused
def another_backend(x, y):
    backend, keras.backend.backend = keras.backend.backend, lambda: "jax"
    try:
        step(image_model(), x, y)
    finally:
        keras.backend.backend = backend


@refused
def renorm(x, y):
    step(image_model(L.BatchNormalization(renorm=True)), x, y)


@refused
def masked(x, y):
    step(sequence_model(L.Masking(), L.BatchNormalization(), L.Flatten()), x, y)


@refused
def random_noise(x, y):
    step(image_model(L.GaussianNoise(0.1), L.BatchNormalization()), x, y)


@refused
def changes_another_variable(x, y):
    step(image_model(L.SpectralNormalization(L.Conv2D(4, 3)), L.BatchNormalization()), x, y)


@refused
def computes_in_float64(x, y):
    step(image_model(L.BatchNormalization(dtype="float64")), x, y)


@refused
def two_layers_of_one_name(x, y):
    model = Net()
    model.dense, model.unused = L.Dense(10, name="same"), L.Dense(3, name="same")
    model(x)
    step(model, x, y)


@refused
def not_a_model(x, y):
    step(L.Dense(3), x, y)


@refused
def not_built(x, y):
    step(keras.Sequential([L.Dense(3)]), x, y)


@refused
def example_without_targets(x, y):  # noqa: ARG001
    bngrad.keras.export(image_model(), keras.losses.MeanSquaredError(), x)


@refused
def example_of_text(x, y):  # noqa: ARG001
    bngrad.keras.export(image_model(), keras.losses.MeanSquaredError(), (x, np.array(["a", "b"])))


@refused
def loss_by_name(x, y):
    step(image_model(), x, y, "mse")


@refused
def loss_of_each_sample(x, y):
    step(image_model(), x, y, lambda _, y_pred: y_pred[:, 0])


@refused
def data_of_another_shape(x, y):
    step(image_model(L.Conv2D(4, 3), L.Flatten(), L.Reshape((12, 12, 1))), x[:, 1:], y)


@refused
def load_into_another_model(x, y):
    training_step = step(image_model(L.Conv2D(4, 3)), x, y)
    bngrad.keras.load_into(image_model(L.Conv2D(4, 3)), bngrad.Trainer(training_step, learning_rate=0.1))


@refused
def load_another_shape(x, y):  # noqa: ARG001
    model = image_model(L.Conv2D(4, 3))
    bngrad.keras.load_into(model, {model.variables[0].path: np.zeros(3, np.float32)})


@refused
def load_into_no_model(x, y):  # noqa: ARG001
    bngrad.keras.load_into(3, {})
