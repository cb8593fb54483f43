// Trains with a trainer in Node: node_trainer.mjs FOLDER. Writes trained.safetensors; prints as JSON the calls, updates and
// learning rates after steps, after a reset and after the state was loaded.
import { readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { Digits } from "../../docs/examples/digits.mjs";
import { Trainer } from "../../docs/examples/step/index.mjs";

const ort = createRequire(new URL("../../docs/examples/node/train.mjs", import.meta.url))("onnxruntime-node");
const [folder] = process.argv.slice(2);
const read = (name) => readFileSync(join(folder, name));
const digits = new Digits(read("digits.safetensors"));
const trainer = await Trainer.load(ort, read, { learningRate: (update) => 0.1 / (1 + update) });
const counts = [];
const count = () => counts.push([trainer.calls, trainer.updates, trainer.learningRate]);
for (let i = 0; i < 3; ++i) {
  await trainer.step(digits.batch(i));
  count();
}
const file = await trainer.save();
writeFileSync(join(folder, "trained.safetensors"), file);
trainer.reset();
count();
trainer.load(file);
count();
const { loss } = await trainer.evaluate(digits.test);
const refused = [];
try {
  trainer.learningRate = "0.1";
} catch ({ message }) {
  refused.push(message);
}
await Trainer.load(ort, read).catch(({ message }) => refused.push(message));
console.log(JSON.stringify({ counts, loss: loss[0], refused }));
