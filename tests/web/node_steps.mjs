// Trains in Node and writes the state before each step and after the last: node_steps.mjs FOLDER STEPS RATE OUTPUT.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { Digits } from "../../docs/examples/digits.mjs";
import { TrainingStep } from "../../docs/examples/step/index.mjs";

const ort = createRequire(new URL("../../docs/examples/node/train.mjs", import.meta.url))("onnxruntime-node");
const [folder, steps, rate, output] = process.argv.slice(2);
const read = async (name) => new Uint8Array(readFileSync(join(folder, name)));
const digits = new Digits(await read("digits.safetensors"));
const step = await TrainingStep.load(ort, read);
const states = [Buffer.from(step.state.slice().buffer)];
for (let i = 0; i < steps; ++i) {
  console.log(`step ${i + 1}  loss ${await step.step(digits.batch(i), Number(rate))}`);
  states.push(Buffer.from(step.state.slice().buffer));
}
writeFileSync(output, Buffer.concat(states));
