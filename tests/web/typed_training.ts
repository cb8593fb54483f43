// Trains with the packed package: typed_training.js FOLDER. Compiled with all checks; prints as JSON what became of it.
import { readFile } from "node:fs/promises";
import { join } from "node:path";
import * as ort from "onnxruntime-node";
import { Trainer, TrainingStep, cosineSchedule, readMetadata, readSafetensors, withConstant, writeSafetensors } from "bngrad";
import type { Batch, NamedTensor, Schedule, StepInfo, StepRecord } from "bngrad";

const folder: string = process.argv[2]!;
const read = (name: string): Promise<Uint8Array> => readFile(join(folder, name));
const schedule: Schedule = cosineSchedule(0.1, 4, { warmup: 1 });
const trainer: Trainer = await Trainer.load(ort, read, { learningRate: schedule, intraOpNumThreads: 1 });
const batch: Batch = {
  images: Float32Array.from({ length: 16 * 64 }, (_, i) => Math.sin(i)),
  labels: BigInt64Array.from({ length: 16 }, (_, i) => BigInt(i % 10)),
};
const losses: number[] = [];
for (let i = 0; i < 3; ++i) losses.push(await trainer.step(batch));
const history: readonly StepRecord[] = trainer.history;
const evaluated: number = (await trainer.evaluate(batch))["loss"]![0] as number;
const saved: Uint8Array = await trainer.save();
const info: StepInfo = trainer.info;
const metadata: string = readMetadata(await read("step.onnx"))["bngrad.step"]!;

// The same state in another trainer, and a rate that is assigned.
const step: TrainingStep = await TrainingStep.load(ort, read);
const other: Trainer = new Trainer(step, 0.5);
other.load(saved);
other.learningRate = (update: number) => update / 10;
const tensors: Record<string, NamedTensor> = readSafetensors(writeSafetensors(step.tensors()));
const model: Uint8Array = await read("step.eval.onnx");
const constants = [await other.finalize(model), withConstant(model, info.flat.input, { dtype: "float32", shape: [info.flat.size], data: step.state })];

// @ts-expect-error - a batch has arrays, not lists
const refused = trainer.step({ images: [1, 2], labels: [1] }).catch(({ message }: Error) => message);
// @ts-expect-error - there is no state of this kind
const absent: unknown = trainer.states;

console.log(
  JSON.stringify({
    losses,
    history,
    evaluated,
    calls: [trainer.calls, trainer.updates, other.calls, other.learningRate],
    again: (await other.evaluate(batch))["loss"]![0],
    tensors: Object.keys(tensors).length === Object.keys(info.state).length,
    constants: Buffer.from(constants[0]!).equals(Buffer.from(constants[1]!)),
    metadata: JSON.parse(metadata).model === info.model,
    refused: await refused,
    absent,
  }),
);
