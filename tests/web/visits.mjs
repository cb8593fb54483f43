// Visits the page several times, also without a network: visits.mjs URL CHROMIUM. Prints as JSON what it showed.
import { chromium } from "playwright-core";

const [url, executablePath] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const context = await browser.newContext();
const page = await context.newPage();
const seen = { errors: [] };
page.on("pageerror", (error) => seen.errors.push(error.message));
const text = (id) => page.textContent(`#${id}`);
const ready = () => page.waitForSelector("#start:enabled");
const figures = async () => Object.fromEntries(await Promise.all(["steps", "loss", "accuracy"].map(async (id) => [id, await text(id)])));
const losses = () => page.evaluate(() => [...window.training.losses]);
/** Waits until the training is stored with this number of steps. */
const stored = (steps) =>
  page.waitForFunction(async (steps) => {
    const { kept } = await import("./kept.mjs");
    return (await kept())?.losses.length === steps;
  }, steps);

// While onnxruntime-web is on its way.
let letGo;
const held = new Promise((resolve) => (letGo = resolve));
await page.route("**/ort.wasm.bundle.min.mjs", async (route) => {
  await held;
  await route.continue();
});
await page.goto(url, { waitUntil: "domcontentloaded" });
await page.waitForFunction(() => document.getElementById("status").textContent.includes("onnxruntime"));
seen.loading = [await text("status"), await text("start"), await page.isDisabled("#start")];
seen.bars = await page.$$eval("#scores div", (bars) => bars.map((bar) => bar.getBoundingClientRect().width));
letGo();
await ready();
seen.ready = await text("status");

for (let i = 0; i < 2; ++i) {
  await page.click("#step");
  await page.waitForSelector("#step:enabled");
}
await stored(2);
[seen.trained, seen.losses] = [await figures(), await losses()];
await page.waitForSelector("html[data-offline=ready]");
await page.reload();
await ready();
seen.reloaded = await figures();
await page.waitForSelector("html[data-offline=ready]");

await context.setOffline(true);
await page.reload();
await ready();
seen.offline = await figures();
await page.click("#step");
await page.waitForSelector("#step:enabled");
seen["offline losses"] = await losses();
await stored(3);
await context.setOffline(false);

// A training that is one step before its end.
await page.evaluate(async () => {
  const { keep, kept } = await import("./kept.mjs");
  const training = await kept();
  await keep({ ...training, losses: new Array(329).fill(0.5) });
});
await page.reload();
await ready();
await page.click("#step");
await page.waitForFunction(() => document.getElementById("start").textContent === "Go on");
seen.end = await text("start");
await page.click("#step");
await page.waitForFunction(() => document.getElementById("steps").textContent === "331");
await page.waitForSelector("#step:enabled");
seen["after the end"] = [await text("steps"), await text("start")];

await page.click("#reset");
await stored(0);
await page.reload();
await ready();
seen.reset = await figures();
await browser.close();
console.log(JSON.stringify(seen));
