// Trains one step for each line of standard input, in Node or on the page, and prints its milliseconds:
// language_worker.mjs node FOLDER THREADS, or language_worker.mjs chromium URL PATH_OF_CHROMIUM.
import { readFile } from "node:fs/promises";
import { createRequire } from "node:module";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { Digits } from "../../docs/examples/digits.mjs";
import { TrainingStep } from "../../docs/examples/step/index.mjs";

const [where, source, argument] = process.argv.slice(2);
const require = (folder) => createRequire(new URL(`../../${folder}/`, import.meta.url));

async function inNode() {
  const read = async (name) => new Uint8Array(await readFile(join(source, name)));
  const digits = new Digits(await read("digits.safetensors"));
  const options = { intraOpNumThreads: Number(argument) };
  const step = await TrainingStep.load(require("docs/examples/node")("onnxruntime-node"), read, "step", options);
  return async (index) => {
    const batch = digits.batch(index);
    const start = performance.now();
    await step.step(batch, 0.01);
    return performance.now() - start;
  };
}

async function inChromium() {
  const { chromium } = require("tests/web")("playwright-core");
  const browser = await chromium.launch({ executablePath: argument, args: ["--no-sandbox"] });
  const page = await browser.newPage();
  await page.goto(source);
  await page.waitForSelector("#start:enabled");
  process.stdin.on("end", () => browser.close());
  return async () => {
    await page.click("#step");
    await page.waitForSelector("#step:enabled");
    return page.evaluate(() => Number(document.getElementById("milliseconds").textContent));
  };
}

const step = await (where === "node" ? inNode() : inChromium());
console.log("ready");
let index = 0;
for await (const _ of createInterface({ input: process.stdin })) console.log(await step(index++));
