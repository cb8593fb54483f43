// Trains in Chromium on the CPU and on WebGPU: webgpu.mjs URL CHROMIUM STEPS BATCH, with the files of prepare.py for
// layout flat, and those for layout named in the folder "named". Prints as JSON the losses and the largest difference of
// the states, and the nodes that ONNX Runtime placed on the CPU; null if there is no adapter.
import { chromium } from "playwright-core";
import { ADAPTER } from "./adapter.mjs";

const [url, executablePath, steps, size] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", ...ADAPTER] });
const page = await browser.newPage();
await page.goto(new URL("../step/", url).href);
const seen = await page.evaluate(train, [Number(steps), Number(size)]);
await browser.close();
console.log(JSON.stringify(seen));

async function train([steps, size]) {
  if (!(await navigator.gpu?.requestAdapter())) return null;
  const ort = await import("/browser/node_modules/onnxruntime-web/dist/ort.webgpu.bundle.min.mjs");
  const { TrainingStep, readMetadata, readSafetensors } = await import("/step/index.mjs");
  const { Digits } = await import("/digits.mjs");
  const lines = [];
  for (const level of ["log", "warn", "error", "info", "debug"]) console[level] = (text) => lines.push(...String(text).split("\n"));
  ort.env.logLevel = "verbose";
  const read = async (name) => new Uint8Array(await (await fetch(`/data/${name}`)).arrayBuffer());
  const digits = new Digits(await read("digits.safetensors"));
  const batches = Array.from({ length: steps }, (_, i) => digits.batch(i)).map(({ images, labels }) => {
    return { images: images.subarray(0, 64 * size), labels: labels.subarray(0, size) };
  });
  const options = (provider) => ({ executionProviders: [provider], logSeverityLevel: 0 });

  /** Returns the nodes on the CPU, the copies and the number of nodes of the session that was made last. */
  function placement() {
    const text = lines.splice(0);
    const starts = text.flatMap((line, i) => (/Node\(s\) placed on/.test(line) ? [i] : []));
    const nodes = starts.flatMap((start) => {
      const provider = text[start].match(/placed on \[(\w+)\]/)[1];
      const rows = text.slice(start + 1, start + 1 + Number(text[start].match(/nodes: (\d+)/)[1]));
      return rows.map((row) => [provider, ...row.match(/\] +(\w+) \((.*)\)/).slice(1)]);
    });
    const onCpu = nodes.filter(([provider]) => provider.startsWith("CPU")).map(([, type, name]) => [type, name]);
    return { onCpu, copies: nodes.filter(([, type]) => type.startsWith("Memcpy")).length, nodes: nodes.length };
  }

  async function flat(provider) {
    const step = await TrainingStep.load(ort, read, "step", options(provider));
    const result = { losses: [], placement: placement() };
    for (const batch of batches) result.losses.push(await step.step(batch, 0.05));
    try {
      result.state = step.state;
    } catch (error) {
      result.refusal = error.message;
      await step.pull();
      result.state = step.state;
    }
    const { logits } = await step.evaluate(batches[0]);
    result.losses.push(await step.step(batches[0], 0.05)); // from the state on the CPU
    return { ...result, logits: Array.from(logits) };
  }

  async function named(provider) {
    const file = await read("named/step.onnx");
    const info = JSON.parse(readMetadata(file)["bngrad.step"]);
    const floats = Object.entries(info.state).filter(([, { dtype }]) => dtype === "float32");
    const preferredOutputLocation = Object.fromEntries(floats.map(([, entry]) => [entry.new, "gpu-buffer"]));
    const session = await ort.InferenceSession.create(file, { ...options(provider), ...(provider === "webgpu" && { preferredOutputLocation }) });
    const result = { losses: [], placement: placement() };
    const feeds = { [info.learning_rate]: new ort.Tensor("float32", [0.05], []) };
    for (const [name, { dtype, shape, data }] of Object.entries(readSafetensors(await read("named/step.safetensors")))) feeds[name] = new ort.Tensor(dtype, data, shape);
    for (const { images, labels } of batches) {
      feeds.images = new ort.Tensor("float32", images, [size, 1, 8, 8]);
      feeds.labels = new ort.Tensor("int64", labels, [size]);
      const results = await session.run(feeds);
      result.losses.push(results[info.loss].data[0]);
      for (const [name, entry] of Object.entries(info.state)) feeds[name] = results[entry.new];
    }
    return { ...result, location: feeds[floats[0][0]].location };
  }

  /** Returns the loss of a network with groups, and its state after a step. */
  async function grouped(provider) {
    const step = await TrainingStep.load(ort, read, "grouped/step", { executionProviders: [provider] });
    const loss = await step.step({ x: Float32Array.from({ length: 2 * 4 * 64 }, (_, i) => Math.sin(i)) }, 0.001);
    await step.pull();
    return { loss, state: Array.from(step.state) };
  }

  const [wasm, webgpu] = [await flat("wasm"), await flat("webgpu")];
  const difference = wasm.state.reduce((largest, value, i) => Math.max(largest, Math.abs(value - webgpu.state[i])), 0);
  delete wasm.state;
  delete webgpu.state;
  return { wasm, webgpu, difference, named: await named("webgpu"), grouped: [await grouped("wasm"), await grouped("webgpu")] };
}
