// Trains the digits network in Node: node train.mjs [FOLDER [STEPS [RATE]]], with the files that ../prepare.py writes.
// The trained state goes to trained.safetensors, the network for inference to trained.onnx.
import { readFile, rename, writeFile } from "node:fs/promises";
import { join } from "node:path";
import * as ort from "onnxruntime-node";
import { Trainer } from "bngrad";
import { Digits, accuracy } from "../digits.mjs";

const [folder = "../data", count = Infinity, rate = 0.05] = process.argv.slice(2);
if (!(count > 0 && rate > 0)) {
  console.error("usage: node train.mjs [FOLDER [STEPS [RATE]]], with numbers above 0");
  process.exit(2);
}
const read = async (name) => new Uint8Array(await readFile(join(folder, name)));
const write = async (name, bytes) => {
  await writeFile(join(folder, `${name}.part`), bytes);
  await rename(join(folder, `${name}.part`), join(folder, name));
};

const digits = new Digits(await read("digits.safetensors"));
const trainer = await Trainer.load(ort, read, { learningRate: Number(rate) });
const steps = Math.min(count, digits.steps);
const start = performance.now();
for (let i = 0; i < steps; ++i) {
  const loss = await trainer.step(digits.batch(i));
  console.log(`step ${i + 1}  loss ${loss}`);
}
const milliseconds = (performance.now() - start) / steps;
const { logits } = await trainer.evaluate(digits.test);
console.log(`${milliseconds.toFixed(1)} ms a step`);
console.log(`accuracy ${accuracy(logits, digits.test.labels)}`);
await write("trained.safetensors", await trainer.save());
await write("trained.onnx", await trainer.finalize(await read("inference.onnx")));
