// A training step in layout "flat": all state is one vector, which goes in and comes out.
import { checkInputs, checkLabels, listed, shapesOf, size } from "./batch.mjs";
import { readMetadata, withConstant } from "./onnx_file.mjs";
import { ARRAYS, readSafetensors, writeSafetensors } from "./safetensors.mjs";

const KEY = "bngrad.step";

// What a state records beside its tensors, as in Python: bngrad average and bngrad train --resume need it.
function stateDocument(info) {
  const entries = Object.entries(info.state);
  const averages = entries.filter(([, { role }]) => role === "average");
  const step = { optimizer: info.optimizer, accumulate: info.accumulate, clip_norm: info.clip_norm };
  for (const name of ["ema", "swa", "swa_every", "synchronized", "fingerprint"]) step[name] = info[name] ?? null;
  return {
    model: info.model,
    roles: Object.fromEntries(entries.map(([name, { role }]) => [name, role])),
    averages: Object.fromEntries(averages.map(([name, { weight }]) => [weight, name])),
    batch_norms: info.batch_norms ?? [],
    quantization: info.quantization ?? null,
    step,
  };
}

export class TrainingStep {
  #vector; // the state, on the CPU or the GPU

  /**
   * Loads step.onnx, step.eval.onnx and the initial state, step.safetensors.
   *
   * @param ort the module onnxruntime-web or onnxruntime-node.
   * @param read an async function that returns the bytes of a file as Uint8Array.
   * @param options the session's options, such as {intraOpNumThreads: 1}. With {executionProviders: ["webgpu"]} the
   *   state stays in a buffer of the GPU between steps; `await step.pull()` copies it to `step.state`.
   */
  static async load(ort, read, name = "step", options = {}) {
    const files = [`${name}.onnx`, `${name}.eval.onnx`, `${name}.safetensors`];
    const readOne = async (file) => {
      try {
        return await read(file);
      } catch (error) {
        const hint = `"bngrad step" writes ${listed(files)} into one folder`;
        throw new Error(`cannot read ${file}; ${hint}: ${error.message}`, { cause: error });
      }
    };
    const [train, evaluate, state] = await Promise.all(files.map(readOne));
    const step = new TrainingStep();
    step.ort = ort;
    const [info, evaluated] = [train, evaluate].map((file) => JSON.parse(readMetadata(file)[KEY] ?? "null"));
    if (!info) throw new Error(`${name}.onnx is no training step: its metadata have no ${KEY}`);
    if (info.version !== 1) throw new Error(`${name}.onnx has format ${info.version}; expected 1`);
    if (!info.flat) throw new Error(`${name}.onnx has layout "${info.layout}"; make it with --layout flat`);
    if (evaluated?.model !== info.model) throw new Error(`${name}.eval.onnx belongs to another step than ${name}.onnx`);
    checkInputs(info.data);
    step.info = info;
    step.initial = readSafetensors(state);
    step.reset();
    const isGpu = (provider) => (provider.name ?? provider) === "webgpu";
    // With channels last, its default, onnxruntime-web 1.30 computes wrong gradients of convolutions with groups.
    const withLayout = (provider) => ({ name: "webgpu", preferredLayout: "NCHW", ...(provider.name && provider) });
    const executionProviders = options.executionProviders?.map((provider) => (isGpu(provider) ? withLayout(provider) : provider));
    const chosen = { ...options, ...(executionProviders && { executionProviders }) };
    const stays = executionProviders?.some(isGpu) && { preferredOutputLocation: { [info.flat.output]: "gpu-buffer" } };
    step.train = await ort.InferenceSession.create(train, { ...chosen, ...stays });
    step.eval = await ort.InferenceSession.create(evaluate, chosen);
    return step;
  }

  /**
   * Trains on one batch: arrays by the names of the data inputs. Returns the loss.
   * After an error, also that of a loss that is not finite, the state is unchanged.
   */
  async step(batch, rate) {
    const { flat, loss, learning_rate, learning_rate_dtype: dtype } = this.info;
    const feeds = this.#feeds(batch, this.info.size_conditions);
    const rates = ARRAYS[dtype].of(rate);
    if (typeof rate !== "number" || !(rate >= 0 && rates[0] < Infinity)) {
      const text = typeof rate === "string" ? `"${rate}"` : rate;
      throw new Error(`the learning rate is ${text}; expected a finite number, at least 0`);
    }
    feeds[learning_rate] = new this.ort.Tensor(dtype, rates, []);
    const results = await this.#run(this.train, feeds, [loss, flat.output]);
    const [value, state] = [results[loss].data[0], results[flat.output]];
    if (!Number.isFinite(value)) {
      state.dispose();
      const hint = "check the data, or return to an earlier state and lower the learning rate";
      throw new Error(`the loss is ${value}; the state is unchanged: ${hint}`);
    }
    this.#setState(state);
    return value;
  }

  /** Evaluates a batch with the running statistics. Returns the outputs of the forward model by name. */
  async evaluate(batch) {
    const feeds = this.#feeds(batch, this.info.evaluation_size_conditions);
    const results = await this.#run(this.eval, feeds, this.eval.outputNames);
    return Object.fromEntries(Object.entries(results).map(([name, tensor]) => [name, tensor.data]));
  }

  /** The state as an array. On a GPU it has to be copied first. */
  get state() {
    if (this.#vector.location !== "gpu-buffer") return this.#vector.data;
    throw new Error('the state is on the GPU; "await step.pull()" copies it from there');
  }

  /** Copies the state from the GPU, for `state`, `tensors`, `safetensors` and `withState`; not during a step. */
  async pull() {
    await this.#vector.getData();
  }

  /** Returns the state as named tensors, {dtype, shape, data}. */
  tensors() {
    const tensors = {};
    for (const [name, { dtype, shape, offset }] of Object.entries(this.info.state)) {
      const values = this.state.slice(offset, offset + size(shape));
      const data = dtype === "int64" ? BigInt64Array.from(values, (x) => BigInt(x)) : ARRAYS[dtype].from(values);
      tensors[name] = { dtype, shape, data };
    }
    return tensors;
  }

  /** Returns to the initial state. */
  reset() {
    this.setTensors(this.initial);
  }

  /** Takes the state from named tensors. */
  setTensors(tensors) {
    const state = new ARRAYS[this.info.flat.dtype](this.info.flat.size);
    for (const [name, { dtype, shape, offset }] of Object.entries(this.info.state)) {
      const found = tensors[name];
      if (!found) throw new Error(`the state has no tensor ${name}`);
      if (found.dtype !== dtype || String(found.shape) !== String(shape)) {
        throw new Error(`tensor ${name} is ${found.dtype} [${found.shape}]; expected ${dtype} [${shape}]`);
      }
      state.set(Array.from(found.data, Number), offset);
    }
    this.#setState(new this.ort.Tensor(this.info.flat.dtype, state, [state.length]));
  }

  /** Returns the state as the bytes of a .safetensors file. */
  safetensors() {
    return writeSafetensors(this.tensors(), { [KEY]: JSON.stringify(stateDocument(this.info)) });
  }

  /** Returns a model whose input is the state vector, such as step.eval.onnx, with the state as a constant. */
  withState(file) {
    const { input, dtype, size: length } = this.info.flat;
    return withConstant(file, input, { dtype, shape: [length], data: this.state });
  }

  #setState(vector) {
    this.#vector?.dispose();
    this.#vector = vector;
  }

  /** Returns the arrays of a batch and the state as the inputs of a session. */
  #feeds(batch, conditions) {
    const { data, flat, labels } = this.info;
    const feeds = { [flat.input]: this.#vector };
    const shapes = shapesOf(batch, data, conditions);
    checkLabels(batch, labels);
    for (const [name, shape] of Object.entries(shapes)) {
      feeds[name] = new this.ort.Tensor(data[name].dtype, batch[name], shape);
    }
    return feeds;
  }

  async #run(session, feeds, outputs) {
    try {
      return await session.run(feeds, outputs, { logSeverityLevel: 4 }); // the error has what the log would say
    } catch (error) {
      const reason = String(error?.message ?? error).trim().replace(/\s+/g, " ");
      throw new Error(`ONNX Runtime refuses the data: ${reason}`, { cause: error });
    }
  }
}
