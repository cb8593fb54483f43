// Runs an inference model on test images in Node: node predict.mjs MODEL DATA
// DATA is a safetensors file with `test/images` and `test/labels`, as ../prepare.py writes.
import { readFile } from "node:fs/promises";
import * as ort from "onnxruntime-node";
import { readSafetensors } from "bngrad";
import { accuracy } from "../digits.mjs";

const [model, data] = process.argv.slice(2);
if (!data) {
  console.error("usage: node predict.mjs MODEL DATA");
  process.exit(2);
}
const { "test/images": images, "test/labels": labels } = readSafetensors(new Uint8Array(await readFile(data)));
const session = await ort.InferenceSession.create(model);
const feeds = { [session.inputNames[0]]: new ort.Tensor("float32", images.data, images.shape) };
const logits = (await session.run(feeds))[session.outputNames[0]];
console.log(`accuracy ${accuracy(logits.data, labels.data)}`);
