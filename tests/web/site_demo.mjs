// Goes from the site's first page to the page that trains: site_demo.mjs URL CHROMIUM. Prints as JSON the losses of two
// steps, what went wrong, and what axe says of the page.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";

const [url, executablePath] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
const errors = [];
page.on("console", (message) => errors.push(`${message.type()}: ${message.text()}`));
page.on("pageerror", ({ message }) => errors.push(message));
page.on("requestfailed", (request) => errors.push(`${request.url()}: ${request.failure().errorText}`));
page.on("response", (response) => response.ok() || errors.push(`${response.url()}: ${response.status()}`));

await page.goto(url);
await page.click("text=Train in this browser");
await page.waitForSelector("#step:enabled, #error:visible");
for (let i = 0; i < 2; ++i) {
  await page.click("#step");
  await page.waitForSelector("#step:enabled, #error:visible");
}
const losses = await page.evaluate(() => window.training.losses);
await page.evaluate(readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8"));
const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
await browser.close();
console.log(JSON.stringify({ losses, errors, axe: violations.map(({ id, nodes }) => `${id}: ${nodes[0].html}`) }));
