// Opens the page with WebGPU and trains a step: gpu_page.mjs URL CHROMIUM FOLDER. Writes to the folder the trained state;
// prints as JSON what the page showed.
import { join } from "node:path";
import { chromium } from "playwright-core";
import { ADAPTER } from "./adapter.mjs";

const [url, executablePath, folder] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox", ...ADAPTER] });
const page = await browser.newPage();
page.setDefaultTimeout(300_000); // an adapter in software is slow
const errors = [];
page.on("pageerror", ({ message }) => errors.push(message));
await page.goto(url);
const enabled = await page.isEnabled("#webgpu");
await page.check("#webgpu"); // the page loads itself anew
await page.waitForURL("**?webgpu");
await page.waitForSelector("#step:enabled, #error:visible");
await page.click("#step");
await page.waitForSelector("#download-safetensors:enabled, #error:visible");
const [download] = await Promise.all([page.waitForEvent("download"), page.click("#download-safetensors")]);
await download.saveAs(join(folder, "gpu.safetensors"));
const seen = { errors, enabled, checked: await page.isChecked("#webgpu") };
seen.losses = await page.evaluate(() => window.training.losses);
seen.rate = 10 ** (await page.inputValue("#rate"));
await browser.close();
console.log(JSON.stringify(seen));
