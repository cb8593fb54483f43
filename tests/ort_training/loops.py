"""Training loops that run with either package: each takes its api and a folder, and returns what it has seen.

The folder of a loop has the artifacts of its model. A loop may leave files there.
"""

from __future__ import annotations

import numpy as np
import onnx

MLP = """<ir_version: 8, opset_import: ["" : 15]>
perceptron (float[N, 4] x) => (float[N, 3] logits)
<float[4, 8] w1, float[8] b1, float[8, 3] w2, float[3] b2> {
    h = Gemm (x, w1, b1)
    r = Relu (h)
    logits = Gemm (r, w2, b2)
}"""
CNN = """<ir_version: 8, opset_import: ["" : 15]>
network (float[N, 1, 6, 6] x) => (float[N, 3] logits)
<float[4, 1, 3, 3] conv, float[4] scale, float[4] bias, float[4] mean, float[4] var, float[64, 3] fc> {
    c = Conv <kernel_shape = [3, 3]> (x, conv)
    n = BatchNormalization <momentum = 0.9> (c, scale, bias, mean, var)
    r = Relu (n)
    f = Flatten (r)
    logits = MatMul (f, fc)
}"""
SHAPES = {
    "mlp": {"w1": (4, 8), "b1": (8,), "w2": (8, 3), "b2": (3,)},
    "cnn": {"conv": (4, 1, 3, 3), "scale": (4,), "bias": (4,), "mean": (4,), "var": (4,), "fc": (64, 3)},
}
CLASSES = np.array([0, 2, 1, 1, 0])


def forward(text, shapes):
    """A forward model with weights from a fixed seed; scale and var are positive."""
    rng = np.random.default_rng(5)
    model = onnx.parser.parse_model(text)
    del model.graph.initializer[:]
    for name, shape in shapes.items():
        array = np.ones(shape, "f") if name in ("scale", "var") else rng.normal(size=shape).astype("f") / 3
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def generate(artifacts, onnxblock, folder):
    """Writes the artifacts of all models."""

    class Weighted(onnxblock.Block):
        """The mean squared error of the logits, plus a tenth of their mean absolute value."""

        def __init__(self):
            super().__init__()
            self.error, self.absolute, self.mean = onnxblock.loss.MSELoss(), onnxblock.blocks.Abs(), None
            self.mean, self.weigh = onnxblock.blocks.ReduceMean(keepdims=False), onnxblock.blocks.Mul()
            self.add, self.tenth = onnxblock.blocks.Add(), onnxblock.blocks.Constant(0.1)

        def build(self, logits):
            small = self.weigh(self.mean(self.absolute(logits)), self.tenth())
            weighed = self.weigh(self.error(logits), onnxblock.blocks.Constant(1.0)())
            return self.add(weighed, small)

    adamw = onnxblock.optim.AdamW(weight_decay=0.01, clip_grad=onnxblock.optim.ClipGradNorm(0.5))
    cross_entropy, sgd = artifacts.LossType.CrossEntropyLoss, artifacts.OptimType.SGD
    statistics = ["mean", "var"]
    mlp, cnn = forward(MLP, SHAPES["mlp"]), forward(CNN, SHAPES["cnn"])
    all_of_mlp, trained = list(SHAPES["mlp"]), ["conv", "scale", "bias", "fc"]
    for name, model, loss, optimizer, requires_grad, frozen in (
        ("mlp", mlp, cross_entropy, adamw, ["w1", "w2", "b2"], ["b1"]),
        ("cnn", cnn, cross_entropy, sgd, trained, statistics),
        ("hidden", cnn, cross_entropy, sgd, trained, []),
        ("custom", mlp, Weighted(), artifacts.OptimType.AdamW, all_of_mlp, []),
    ):
        (folder / name).mkdir()
        artifacts.generate_artifacts(
            onnx.ModelProto.FromString(model.SerializeToString()),
            requires_grad=requires_grad,
            frozen_params=frozen,
            loss=loss,
            optimizer=optimizer,
            artifact_directory=str(folder / name),
            nominal_checkpoint=True,
        )
        # This onnx may be newer than what the old package can load.
        path = folder / name / "optimizer_model.onnx"
        optimizer_model = onnx.load(path)
        optimizer_model.ir_version = 8
        onnx.save(optimizer_model, path)


class Run:
    """A state, a module and an optimizer, and what they have shown so far."""

    def __init__(self, api, folder, checkpoint=None, *, evaluates=True):
        self.api, self.folder, self.seen = api, folder, {}
        self.state = api.CheckpointState.load_checkpoint(str(checkpoint or folder / "checkpoint"))
        evaluation = str(folder / "eval_model.onnx") if evaluates else None
        self.module = api.Module(str(folder / "training_model.onnx"), self.state, evaluation)
        self.optimizer = api.Optimizer(str(folder / "optimizer_model.onnx"), self.module)

    def see(self, key, value):
        self.seen[key] = np.array(value)

    def see_parameters(self, key):
        for name, parameter in self.state.parameters:
            self.see(f"{key} {name}", parameter.data)
            if parameter.requires_grad:
                self.see(f"{key} {name}_grad", parameter.grad)

    def save(self, name):
        self.api.CheckpointState.save_checkpoint(self.state, str(self.folder / name), include_optimizer_state=True)

    def train(self, steps, inputs, *, calls=1, key="step"):
        """Trains some steps, each on the gradients of some calls."""
        for step in steps:
            for call in range(calls):
                self.see(f"{key} {step}.{call} loss", self.module(*inputs(step * calls + call)))
            self.see_parameters(f"{key} {step} before")
            self.optimizer.step()
            self.see_parameters(f"{key} {step} after")
            self.module.lazy_reset_grad()
            self.see("rate", self.optimizer.get_learning_rate())


def vectors(step):
    return np.random.default_rng(step).normal(size=(5, 4)).astype("f"), CLASSES


def images(step):
    return np.random.default_rng(step).normal(size=(5, 1, 6, 6)).astype("f"), CLASSES


def targets(step):
    x, _ = vectors(step)
    return x, np.random.default_rng(step + 100).normal(size=(5, 3)).astype("f")


def mlp(api, folder):
    """AdamW with clipping, a frozen bias, gradients of two calls, a checkpoint in the middle."""
    run = Run(api, folder)
    run.see("names", [*run.module.input_names(), *run.module.output_names()])
    run.optimizer.set_learning_rate(0.02)
    run.train(range(3), vectors, calls=2)
    run.state.properties["epoch"], run.state.properties["best"], run.state.properties["note"] = 3, 0.1, "ab"
    run.save("middle")
    run.train(range(3, 5), vectors, calls=2)
    run.module.eval()
    run.see("evaluation", run.module(*vectors(9)))
    return run.seen


def resumed_mlp(api, folder, checkpoint):
    """The rest of `mlp`, from a checkpoint."""
    run = Run(api, folder, checkpoint)
    run.see("rate at first", run.optimizer.get_learning_rate())
    run.see("properties", [str(value) for _, value in run.state.properties])
    run.optimizer.set_learning_rate(0.02)
    run.train(range(3, 5), vectors, calls=2)
    return run.seen


def cnn(api, folder):
    """SGD, running statistics that are parameters, evaluation in between, and the way back to inference."""
    run = Run(api, folder)
    run.optimizer.set_learning_rate(0.1)
    for step in range(3):
        run.module.train()
        run.train([step], images)
        run.module.eval()
        run.see(f"evaluation {step}", run.module(*images(9)))
    run.save("middle")
    run.module.export_model_for_inferencing(str(folder / "exported.onnx"), ["logits"])
    return run.seen


def resumed_cnn(api, folder, checkpoint):
    """Two steps more than `cnn`, from a checkpoint."""
    run = Run(api, folder, checkpoint)
    run.train(range(3, 5), images)
    run.module.eval()
    run.see("evaluation", run.module(*images(9)))
    run.save("again")
    return run.seen


def hidden(api, folder):
    """Running statistics that are not parameters."""
    run = Run(api, folder, evaluates=False)
    run.train(range(3), images)
    return run.seen


def custom(api, folder):
    """A loss of blocks, and a scheduler whose counts are equal, which the old binding swaps."""
    run = Run(api, folder)
    scheduler = api.LinearLRScheduler(run.optimizer, 4, 4, 0.05)
    for step in range(6):
        run.train([step], targets)
        scheduler.step()
        run.see(f"rate {step}", run.optimizer.get_learning_rate())
    run.optimizer.set_learning_rate(0.02)
    run.save("middle")
    second = api.Optimizer(str(folder / "optimizer_model.onnx"), run.module)
    run.see("rate of a second optimizer", second.get_learning_rate())
    run.see("rate at first", Run(api, folder, folder / "middle").optimizer.get_learning_rate())
    return run.seen


KINDS = (AttributeError, KeyError, LookupError, TypeError, RuntimeError)
"""The errors of both packages, or the classes that they are of."""


def errors(api, folder):
    """Calls that fail, each with the kind of its error; and some that do not."""
    run = Run(api, folder)
    state, module, (x, labels) = run.state, run.module, vectors(0)
    state.properties["p"] = 1
    nominal = api.CheckpointState.load_checkpoint(str(folder / "nominal_checkpoint"))
    for name, call in {
        "state of a state": lambda: api.CheckpointState(state),
        "state of a number": lambda: api.CheckpointState(5),
        "state of nothing": api.CheckpointState,
        "state of the state inside": lambda: api.CheckpointState(state=state._state).parameters["w1"],
        "save nothing": lambda: api.CheckpointState.save_checkpoint(None, str(folder / "none")),
        "load a number": lambda: api.CheckpointState.load_checkpoint(5),
        "parameter of a number": lambda: state.parameters[0],
        "parameter of no name": lambda: state.parameters["q"],
        "contains a number": lambda: 0 in state.parameters,
        "property of a number": lambda: state.properties[0],
        "property of no name": lambda: state.properties["q"],
        "remove a property": lambda: state.properties.__delitem__("p"),
        "set to a list": lambda: state.parameters.__setitem__("b2", [0.0] * 3),
        "set to nothing": lambda: setattr(state.parameters["b2"], "data", None),
        "set a name": lambda: setattr(state.parameters["b2"], "name", "q"),
        "unknown attribute": lambda: state.parameters["b2"].shape,
        "module of no state": lambda: api.Module(str(folder / "training_model.onnx"), None),
        "module of a path": lambda: api.Module(5, state),
        "optimizer of no module": lambda: api.Optimizer(str(folder / "optimizer_model.onnx"), None),
        "scheduler of no optimizer": lambda: api.LinearLRScheduler(None, 1, 2, 0.1),
        "rate as text": lambda: run.optimizer.set_learning_rate("a"),
        "lists": lambda: module(x.tolist(), labels.tolist()),
        "nothing as data": lambda: module(None, None),
        "a list beside an array": lambda: module(x, labels.tolist()),
        "too few inputs": lambda: module(x),
        "names to export as text": lambda: module.export_model_for_inferencing(str(folder / "e"), "logits"),
        "no names to export": lambda: module.export_model_for_inferencing(str(folder / "e"), None),
        "buffer of nothing": lambda: module.copy_buffer_to_parameters(None),
        "nominal parameter": lambda: nominal.parameters["w1"],
        "nominal parameters": lambda: list(nominal.parameters),
        "save a nominal state": lambda: api.CheckpointState.save_checkpoint(nominal, str(folder / "nominal")),
        "load a nominal state": lambda: len(
            api.CheckpointState.load_checkpoint(str(folder / "nominal")).parameters
        ),
    }.items():
        try:
            call()
            kind = "none"
        except Exception as error:  # noqa: BLE001 - of any kind
            kind = next(
                (candidate.__name__ for candidate in KINDS if isinstance(error, candidate)), type(error).__name__
            )
        run.see(name, kind)
    return run.seen


def buffers(api, folder):
    """All parameters as one vector and back, into a nominal state; views of the state are live."""
    run = Run(api, folder)
    held, gradient = run.state.parameters["w1"].data, run.state.parameters["w1"].grad
    run.train([0], vectors)
    run.see("view", held)
    run.see("view of the gradient", gradient)
    held[...] = 0.25
    run.see("loss of written view", run.module(*vectors(1)))
    run.state.parameters["w2"] = np.full((8, 3), 0.5, "f")
    run.state.parameters["b2"].data = np.full(3, 0.125, "f")
    run.see("loss of set parameters", run.module(*vectors(1)))
    for trainable in (True, False):
        run.see(f"sizes {trainable}", run.module.get_parameters_size(trainable))
        run.see(f"vector {trainable}", run.module.get_contiguous_parameters(trainable).numpy())
    nominal = api.CheckpointState.load_checkpoint(str(folder / "nominal_checkpoint"))
    module = api.Module(str(folder / "training_model.onnx"), nominal)
    module.copy_buffer_to_parameters(run.module.get_contiguous_parameters(False), False)
    run.see("loss of nominal", module(*vectors(2)))
    api.Optimizer(str(folder / "optimizer_model.onnx"), module).step()
    for name, parameter in nominal.parameters:
        run.see(f"nominal {name}", parameter.data)
    run.module.copy_buffer_to_parameters(module.get_contiguous_parameters(True), True)
    run.see_parameters("copied")
    return run.seen


def calls_in_any_order(api, folder, seed=1, count=80):
    """Calls of the whole interface, drawn at random; after each, all that can be seen."""
    rng = np.random.default_rng(seed)
    run = Run(api, folder)
    seen = {}

    def call(step):
        run.see("loss", run.module(*vectors(step)))

    def evaluate(step):
        run.module.eval()
        call(step)
        run.module.train()

    def write_view(step):
        run.state.parameters["w1"].data[step % 4] *= 0.5

    def assign(step):
        name = ("w1", "b1", "w2", "b2")[step % 4]
        value = run.state.parameters[name].data * np.float32(0.9)
        if step % 2:
            run.state.parameters[name] = value
        else:
            run.state.parameters[name].data = value

    def through_a_buffer(step):
        trainable = bool(step % 2)
        run.module.copy_buffer_to_parameters(run.module.get_contiguous_parameters(trainable), trainable)

    def resume(step):
        run.state.properties["step"] = step
        run.save("random")
        rate = run.optimizer.get_learning_rate()
        resumed = Run(api, folder, folder / "random")
        run.state, run.module, run.optimizer = resumed.state, resumed.module, resumed.optimizer
        if step % 2:
            run.optimizer.set_learning_rate(rate)

    operations = [
        *[call] * 4,
        *[lambda _: run.optimizer.step()] * 3,
        *[lambda _: run.module.lazy_reset_grad()] * 2,
        lambda step: run.optimizer.set_learning_rate(0.001 * (step % 7)),
        lambda step: api.LinearLRScheduler(run.optimizer, step, step, 0.01).step(),
        evaluate,
        write_view,
        assign,
        through_a_buffer,
        resume,
    ]
    for step in range(count):
        operations[rng.integers(len(operations))](step)
        run.see_parameters("now")
        run.see("rate", run.optimizer.get_learning_rate())
        seen |= {f"{step} {key}": value for key, value in run.seen.items()}
    return seen


LOOPS = {
    "mlp": mlp,
    "cnn": cnn,
    "hidden": hidden,
    "custom": custom,
    "buffers": buffers,
    "errors": errors,
    "any-order": calls_in_any_order,
}
MODELS = {name: "mlp" if name in ("buffers", "errors", "any-order") else name for name in LOOPS}
RESUMED = {"mlp": resumed_mlp, "cnn": resumed_cnn}
