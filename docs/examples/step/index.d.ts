import type { InferenceSession, Tensor } from "onnxruntime-common";

/** The module onnxruntime-node or onnxruntime-web, or another that has these two. */
export interface OnnxRuntime {
  readonly InferenceSession: typeof InferenceSession;
  readonly Tensor: typeof Tensor;
}

/** Returns the bytes of a file, by its name: `readFile` of node:fs/promises, or a `fetch`. */
export type ReadFile = (name: string) => Uint8Array | Promise<Uint8Array>;

export type Dtype = "float32" | "float64" | "int64" | "int32" | "uint8" | "bool";
export type DataArray = Float32Array | Float64Array | BigInt64Array | Int32Array | Uint8Array;

/** An array for each data input, by its name: int64 is a BigInt64Array. */
export type Batch = Readonly<Record<string, DataArray>>;

/** A learning rate as a function of the number of updates. */
export type Schedule = (update: number) => number;

export interface NamedTensor {
  dtype: Dtype;
  shape: readonly number[];
  data: DataArray;
}

/** The metadata of a step in layout "flat"; the page on the training step describes all entries. */
export interface StepInfo {
  readonly version: 1;
  readonly layout: "flat";
  readonly loss: string;
  readonly outputs: readonly string[];
  readonly learning_rate: string;
  readonly learning_rate_dtype: "float32" | "float64";
  readonly data: Readonly<Record<string, { dtype: Dtype; shape: readonly (number | string)[] }>>;
  readonly state: Readonly<Record<string, { role: string; dtype: Dtype; shape: readonly number[]; offset: number }>>;
  readonly flat: { input: string; output: string; dtype: "float32" | "float64"; size: number };
  readonly optimizer: Readonly<Record<string, unknown>>;
  readonly accumulate: number;
  readonly clip_norm: number | null;
  readonly model: string;
  readonly [entry: string]: unknown;
}

/** A training step in layout "flat", and its state. */
export class TrainingStep {
  private constructor();

  /**
   * Loads step.onnx, step.eval.onnx and the initial state, step.safetensors.
   *
   * @param name the name of the files without their ends.
   * @param options the session's options. With `executionProviders: ["webgpu"]` the state stays on the GPU.
   */
  static load(
    ort: OnnxRuntime,
    read: ReadFile,
    name?: string,
    options?: InferenceSession.SessionOptions,
  ): Promise<TrainingStep>;

  readonly info: StepInfo;

  /** The tensors of step.safetensors. */
  readonly initial: Readonly<Record<string, NamedTensor>>;

  /** The state as an array; on a GPU it has to be copied by `pull` first. */
  get state(): Float32Array | Float64Array;

  /** Trains on one batch; returns the loss before the update. After an error the state is unchanged. */
  step(batch: Batch, learningRate: number): Promise<number>;

  /** Returns the outputs of the forward model in inference mode, by name. */
  evaluate(batch: Batch): Promise<Record<string, Tensor.DataType>>;

  /** Copies the state from the GPU; not during a step. */
  pull(): Promise<void>;

  /** Returns the state as named tensors. */
  tensors(): Record<string, NamedTensor>;

  /** Takes the state from named tensors. */
  setTensors(tensors: Readonly<Record<string, NamedTensor>>): void;

  /** Returns to the initial state. */
  reset(): void;

  /** Returns the state as the bytes of a .safetensors file. */
  safetensors(): Uint8Array;

  /** Returns a model whose input is the state vector with the state as a constant. */
  withState(model: Uint8Array): Uint8Array;
}

export interface TrainerOptions extends InferenceSession.SessionOptions {
  /** A number, or a function of the number of updates. */
  learningRate: number | Schedule;
  /** The name of the files without their ends; by default "step". */
  name?: string;
}

export interface StepRecord {
  readonly step: number;
  readonly loss: number;
  readonly learning_rate: number;
  /** The time since the trainer was made. */
  readonly seconds: number;
}

/** A training step with a learning rate, a count of updates and a history. */
export class Trainer {
  /** Loads a training step and its state; takes what `TrainingStep.load` takes. */
  static load(ort: OnnxRuntime, read: ReadFile, options: TrainerOptions): Promise<Trainer>;

  constructor(trainingStep: TrainingStep, learningRate: number | Schedule);

  readonly trainingStep: TrainingStep;

  /** A record for each step. */
  readonly history: readonly StepRecord[];

  get info(): StepInfo;

  /** The number of calls of `step` that the state has seen, also before it was loaded. */
  get calls(): number;

  /** The number of updates of the weights; less than `calls` if the step accumulates gradients. */
  get updates(): number;

  /** The learning rate of the next step. A number or a function can be assigned. */
  get learningRate(): number;
  set learningRate(rate: number | Schedule);

  /** Trains on one batch; returns the loss before the update. After an error the state is unchanged. */
  step(batch: Batch): Promise<number>;

  /** Returns the outputs of the forward model in inference mode, by name. */
  evaluate(batch: Batch): Promise<Record<string, Tensor.DataType>>;

  /** Returns the state as the bytes of a .safetensors file, also from a GPU. */
  save(): Promise<Uint8Array>;

  /** Takes the state of a .safetensors file; the history begins anew. */
  load(file: Uint8Array): void;

  /** Returns to the initial state; the history begins anew. */
  reset(): void;

  /** Returns a model whose input is the state vector with the trained state as a constant. */
  finalize(model: Uint8Array): Promise<Uint8Array>;
}

/** Returns a rate that changes linearly from `rate * start` to `rate * end`, and then is constant. */
export function linearSchedule(rate: number, total: number, options?: { start?: number; end?: number }): Schedule;

/** Returns a rate that falls to a minimum along half a cosine, by choice after a linear warm-up. */
export function cosineSchedule(
  rate: number,
  total: number,
  options?: { minimum?: number; warmup?: number; start?: number },
): Schedule;

/** Returns a rate that is multiplied by a factor every `every` updates. */
export function stepSchedule(rate: number, every: number, options?: { factor?: number }): Schedule;

/** Returns the tensors of a .safetensors file by name. */
export function readSafetensors(file: Uint8Array): Record<string, NamedTensor>;

/** Returns the bytes of a .safetensors file. */
export function writeSafetensors(
  tensors: Readonly<Record<string, NamedTensor>>,
  metadata?: Readonly<Record<string, string>>,
): Uint8Array;

/** Returns the metadata of an .onnx file. */
export function readMetadata(file: Uint8Array): Record<string, string>;

/** Returns a copy of an .onnx file in which an input is a constant. */
export function withConstant(file: Uint8Array, name: string, tensor: NamedTensor): Uint8Array;
