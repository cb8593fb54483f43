// Opens the page without a file: broken_page.mjs URL CHROMIUM PATTERN. Prints what the page shows.
import { chromium } from "playwright-core";

const [url, executablePath, pattern] = process.argv.slice(2);
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] });
const page = await browser.newPage();
await page.route(pattern, (route) => route.fulfill({ status: 404 }));
await page.goto(url);
await page.waitForSelector("#error:visible");
console.log(await page.textContent("#error"));
await browser.close();
