// The page: loads the training step, trains while "Start" is on, and shows how it goes.
import { Trainer } from "bngrad";
import { Digits, accuracy, argmax } from "../digits.mjs";
import { drawCurve } from "./curve.mjs";
import { keep, kept } from "./kept.mjs";
import { Pad, drawPixels } from "./pad.mjs";

const SHOWN = 34; // test images
const EVALUATE_EVERY = 20; // steps
const PROVIDER = location.search === "?webgpu" ? "webgpu" : "wasm";

const element = (id) => document.getElementById(id);
const pad = new Pad(element("pad"), () => attempt(recognize));
const losses = [];
let trainer, digits, end, running = false;

/** Runs a function; its error is shown on the page. */
async function attempt(action) {
  try {
    await action();
  } catch (error) {
    setRunning(false);
    element("error").hidden = false;
    show("error", error.message);
    throw error;
  }
}

async function read(name) {
  const response = await fetch(`../data/${name}`);
  if (!response.ok) {
    throw new Error(`${response.url}: ${response.status} ${response.statusText}
      "python docs/examples/prepare.py" makes the data; serve the folder docs/examples.`);
  }
  return new Uint8Array(await response.arrayBuffer());
}

async function load() {
  show("status", "Loading onnxruntime-web …");
  const ort = await import(`onnxruntime-web/${PROVIDER}`).catch(({ message }) => {
    throw new Error(`${message}\nRun "npm install" in docs/examples/browser.`);
  });
  show("status", "Loading the digits and the training step …");
  digits = new Digits(await read("digits.safetensors"));
  trainer = await Trainer.load(ort, read, { learningRate: rate(), executionProviders: [PROVIDER] });
  for (let row = 0; row < SHOWN; ++row) {
    const figure = element("images").appendChild(document.createElement("figure"));
    drawPixels(figure.appendChild(document.createElement("canvas")), digits.ink(row));
    figure.appendChild(document.createElement("figcaption"));
  }
  await restore();
  await evaluate();
  setRunning(false);
  window.training = { trainer, losses }; // for the console
  await makeOffline();
}

/** Takes up the training of the last visit, if it was of this step. */
async function restore() {
  const training = await kept();
  end = digits.steps;
  if (training?.model === trainer.info.model) {
    trainer.load(training.state);
    losses.push(...training.losses);
    while (end < losses.length) end += digits.steps;
    show("steps", losses.length);
    if (losses.length) show("loss", losses.at(-1).toPrecision(3));
  }
  drawCurve(element("curve"), losses, end);
}

async function remember() {
  const state = await trainer.save();
  await keep({ model: trainer.info.model, losses: [...losses], state });
}

/** Has the files that were loaded kept for visits without a network. */
async function makeOffline() {
  if (!navigator.serviceWorker) return; // the page is neither local nor served by HTTPS
  await navigator.serviceWorker.register("offline.js");
  const { active } = await navigator.serviceWorker.ready;
  const files = performance.getEntriesByType("resource").map(({ name }) => name);
  active.postMessage([location.href, ...files].filter((name) => name.startsWith(location.origin)));
  await new Promise((resolve) => navigator.serviceWorker.addEventListener("message", resolve, { once: true }));
  document.documentElement.dataset.offline = "ready";
}

function setRunning(on) {
  running = on;
  const done = trainer && losses.length === end;
  show("start", on ? "Stop" : done ? "Go on" : "Start");
  show("status", done && !on ? `All ${end} steps are done. "Go on" takes the batches once more.` : "");
  element("start").disabled = !trainer;
  element("step").disabled = !trainer || on;
  for (const id of ["reset", "download-onnx", "download-safetensors"]) element(id).disabled = !trainer || on;
}

async function trainOneStep() {
  const start = performance.now();
  trainer.learningRate = rate();
  const loss = await trainer.step(digits.batch(losses.length % digits.steps));
  show("milliseconds", (performance.now() - start).toFixed(0));
  losses.push(loss);
  show("steps", losses.length);
  show("loss", loss.toPrecision(3));
  drawCurve(element("curve"), losses, end);
  if (losses.length % EVALUATE_EVERY === 0) {
    await evaluate();
    await remember();
  }
}

/** Trains until "Stop" or the end of the batches, or for one step. */
async function train(single) {
  if (losses.length === end) end += digits.steps;
  setRunning(true);
  do {
    await trainOneStep();
    await new Promise(requestAnimationFrame); // the page is drawn, and takes events
  } while (running && !single && losses.length < end);
  setRunning(false);
  await evaluate();
  await remember();
}

async function reset() {
  losses.length = 0;
  end = digits.steps;
  trainer.reset();
  element("error").hidden = true;
  for (const id of ["loss", "milliseconds"]) show(id, "–");
  show("steps", 0);
  drawCurve(element("curve"), losses, end);
  setRunning(false);
  await evaluate();
  await remember();
}

/** Shows the accuracy on the test images, and what the network takes the drawing for. */
async function evaluate() {
  const { images, labels } = digits.test;
  const { logits } = await trainer.evaluate({ images, labels });
  show("accuracy", `${(100 * accuracy(logits, labels)).toFixed(1)} %`);
  [...element("images").children].forEach((figure, row) => {
    const found = argmax(logits.subarray(10 * row, 10 * row + 10));
    figure.className = found === Number(labels[row]) ? "right" : "wrong";
    figure.lastChild.textContent = found;
  });
  await recognize();
}

async function recognize() {
  const ink = pad.ink();
  drawPixels(element("input"), ink ?? new Float32Array(64));
  let scores = new Array(10).fill(0);
  if (ink && trainer) {
    const { logits } = await trainer.evaluate({ images: digits.normalized(ink), labels: BigInt64Array.of(0n) });
    const highest = Math.max(...logits);
    const exponentials = Array.from(logits, (logit) => Math.exp(logit - highest));
    const sum = exponentials.reduce((a, b) => a + b);
    scores = exponentials.map((value) => value / sum);
  }
  show("digit", ink && trainer ? argmax(scores) : "?");
  [...element("scores").children].forEach((item, i) => (item.firstChild.style.width = `${100 * scores[i]}%`));
}

async function download(name, bytes) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([bytes]));
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

function rate() {
  return 10 ** element("rate").value;
}

function show(id, text) {
  element(id).textContent = text;
}

const on = (id, type, action) => element(id).addEventListener(type, () => attempt(action));
const showRate = () => show("rate-value", rate().toPrecision(2));
on("start", "click", async () => (running ? (running = false) : train(false)));
on("step", "click", () => train(true));
on("reset", "click", reset);
on("rate", "input", showRate);
on("webgpu", "change", () => (location.search = PROVIDER === "wasm" ? "?webgpu" : ""));
on("clear", "click", () => pad.clear());
on("download-onnx", "click", async () => {
  await download("digits.onnx", await trainer.finalize(await read("inference.onnx")));
});
on("download-safetensors", "click", async () => {
  await download("digits.safetensors", await trainer.save());
});
window.addEventListener("resize", () => trainer && drawCurve(element("curve"), losses, end));

for (let i = 0; i < 10; ++i) element("scores").appendChild(document.createElement("li")).append(document.createElement("div"));
showRate();
element("webgpu").checked = PROVIDER === "webgpu";
element("webgpu").disabled = !navigator.gpu && PROVIDER === "wasm";
attempt(load);
