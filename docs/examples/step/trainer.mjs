// The trainer: a training step with a learning rate, a count of updates and a history, as in the Python package.
import { TrainingStep } from "./step.mjs";
import { readSafetensors } from "./safetensors.mjs";

export class Trainer {
  #schedule;
  #calls;
  #start = performance.now();

  /**
   * Loads a training step and its state; takes what TrainingStep.load takes.
   *
   * @param learningRate a number, or a function of the number of updates, such as cosineSchedule(0.1, 500).
   */
  static async load(ort, read, { learningRate, name = "step", ...options } = {}) {
    return new Trainer(await TrainingStep.load(ort, read, name, options), learningRate);
  }

  constructor(trainingStep, learningRate) {
    this.trainingStep = trainingStep;
    this.learningRate = learningRate;
    this.reset();
  }

  /** The metadata of the step. */
  get info() {
    return this.trainingStep.info;
  }

  /** The number of calls of `step` that the state has seen, also before it was loaded. */
  get calls() {
    return this.#calls;
  }

  /** The number of updates of the weights, of which the learning rate is a function. */
  get updates() {
    return Math.floor(this.#calls / (this.info.accumulate ?? 1));
  }

  /** The learning rate of the next step. A number or a function can be assigned. */
  get learningRate() {
    return this.#schedule(this.updates);
  }

  set learningRate(rate) {
    if (typeof rate !== "number" && typeof rate !== "function") {
      throw new Error(`the learning rate is ${rate}; expected a number or a function of the number of updates`);
    }
    this.#schedule = typeof rate === "function" ? rate : () => rate;
  }

  /** Trains on one batch, arrays by the names of the data inputs; returns the loss before the update. */
  async step(batch) {
    const rate = this.learningRate;
    const loss = await this.trainingStep.step(batch, rate);
    const seconds = (performance.now() - this.#start) / 1000;
    this.history.push({ step: ++this.#calls, loss, learning_rate: rate, seconds });
    return loss;
  }

  /** Returns the outputs of the forward model in inference mode, with the present state, by name. */
  evaluate(batch) {
    return this.trainingStep.evaluate(batch);
  }

  /** Returns the state as the bytes of a .safetensors file, which `load` and the Python package read. */
  async save() {
    await this.trainingStep.pull();
    return this.trainingStep.safetensors();
  }

  /** Takes the state of a .safetensors file. The history begins anew. */
  load(file) {
    this.#take(readSafetensors(file));
  }

  /** Returns to the initial state. */
  reset() {
    this.#take(this.trainingStep.initial);
  }

  /** Returns a model whose input is the state vector, such as step.eval.onnx, as a file with the trained state. */
  async finalize(model) {
    await this.trainingStep.pull();
    return this.trainingStep.withState(model);
  }

  #take(tensors) {
    this.trainingStep.setTensors(tensors);
    const count = (role) =>
      Object.entries(this.info.state)
        .filter(([, entry]) => entry.role === role)
        .reduce((sum, [name]) => sum + Number(tensors[name].data[0]), 0);
    this.#calls = count("step") * (this.info.accumulate ?? 1) + count("micro_step") + count("skipped");
    /** A record for each step: `step`, `loss`, `learning_rate` and `seconds` since the trainer was made. */
    this.history = [];
  }
}
