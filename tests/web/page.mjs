// Uses the page as a person does: page.mjs URL CHROMIUM STEPS FOLDER. Writes to the folder what the page downloads, the
// states of the first STEPS steps and a screenshot; prints as JSON what the page showed.
import { writeFileSync } from "node:fs";
import { join } from "node:path";
import { chromium } from "playwright-core";
import { STROKES } from "./strokes.mjs";

const [url, executablePath, steps, folder] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] }); // a sandbox needs another user than root
const page = await browser.newPage({ viewport: { width: 1120, height: 920 }, colorScheme: "light" });
const seen = { console: [], losses: [], curve: [], digits: {} };
page.on("console", (message) => seen.console.push(`${message.type()}: ${message.text()}`));
page.on("pageerror", (error) => seen.console.push(`error: ${error.message}`));
const text = (id) => page.textContent(`#${id}`);

await page.goto(url);
await page.waitForSelector("#start:enabled");
seen.rate = 10 ** (await page.inputValue("#rate"));
seen.untrained = await text("accuracy");
const states = [];
const remember = async () => {
  const bytes = await page.evaluate(async () => {
    const reader = new FileReader();
    const read = new Promise((resolve) => (reader.onload = resolve));
    reader.readAsDataURL(new Blob([window.training.trainer.trainingStep.state]));
    await read;
    return reader.result.split(",")[1];
  });
  states.push(Buffer.from(bytes, "base64"));
  seen.curve.push(await page.evaluate(() => document.getElementById("curve").toDataURL().length));
};
await remember();
for (let i = 0; i < steps; ++i) {
  await page.click("#step");
  await page.waitForSelector("#step:enabled");
  await remember();
}
writeFileSync(join(folder, "states"), Buffer.concat(states));
seen.losses = await page.evaluate(() => window.training.losses);

// Again from the start, now until the end.
await page.click("#reset");
await page.waitForFunction(() => document.getElementById("steps").textContent === "0");
await page.click("#start");
await page.waitForFunction((count) => window.training.losses.length >= count, 40);
seen.running = await text("start");
await page.click("#start");
await page.waitForSelector("#step:enabled");
seen.stopped = Number(await text("steps"));
seen.again = (await page.evaluate(() => window.training.losses)).slice(0, steps);
await page.click("#start");
await page.waitForSelector("#reset:enabled", { timeout: 240_000 });
seen.finished = [await text("start"), await text("status")];
for (const id of ["steps", "loss", "accuracy", "milliseconds"]) seen[id] = await text(id);
seen.wrong = await page.$$eval("#images .wrong", (figures) => figures.length);

for (const id of ["onnx", "safetensors"]) {
  const [download] = await Promise.all([page.waitForEvent("download"), page.click(`#download-${id}`)]);
  await download.saveAs(join(folder, download.suggestedFilename()));
}

const box = await page.locator("#pad").boundingBox();
const move = ([x, y], options) => page.mouse.move(box.x + (x / 100) * box.width, box.y + (y / 100) * box.height, options);
for (const [digit, strokes] of Object.entries(STROKES)) {
  await page.click("#clear");
  for (const [first, ...others] of strokes) {
    await move(first);
    await page.mouse.down();
    for (const point of others) await move(point, { steps: 5 });
    await page.mouse.up();
  }
  // The page has evaluated the drawing when it has done this, too.
  await page.evaluate(() => window.training.trainer.trainingStep.evaluate({ images: new Float32Array(64), labels: BigInt64Array.of(0n) }));
  seen.digits[digit] = await text("digit");
}
await page.screenshot({ path: join(folder, "screenshot.png"), fullPage: true });
await page.click("#clear");
seen.cleared = await text("digit");
await browser.close();
console.log(JSON.stringify(seen));
