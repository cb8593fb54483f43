// Makes calls in Node, each from the initial state: node_calls.mjs FOLDER CALL... Prints what became of each, as JSON.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { TrainingStep } from "../../docs/examples/step/index.mjs";

const ort = createRequire(new URL("../../docs/examples/node/train.mjs", import.meta.url))("onnxruntime-node");
const [folder, ...calls] = process.argv.slice(2);
const step = await TrainingStep.load(ort, (name) => readFileSync(join(folder, name)));
for (const call of calls) {
  step.reset();
  const before = Buffer.from(step.state.slice().buffer);
  const images = Float32Array.from({ length: 16 * 64 }, (_, i) => Math.sin(i));
  const labels = BigInt64Array.from({ length: 16 }, (_, i) => BigInt(i % 10));
  const wrong = (label) => ({ images, labels: labels.fill(label) });
  const unchecked = (action) => {
    const all = step.info.labels;
    step.info.labels = [];
    return action().finally(() => (step.info.labels = all));
  };
  const run = new Function("step", "batch", "images", "labels", "wrong", "unchecked", `return ${call}`);
  const error = await run(step, { images, labels }, images, labels, wrong, unchecked).then(
    () => undefined,
    ({ message }) => message,
  );
  console.log(JSON.stringify({ error, unchanged: before.equals(Buffer.from(step.state.slice().buffer)) }));
}
