// Reads the documentation from files: site.mjs FOLDER CHROMIUM [SCREENSHOTS PAGE...]. Prints as JSON what went wrong on
// each page, at two widths, in light and in dark, what axe says of some pages, and what the search finds.
import { readdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [folder, executablePath, screenshots, ...chosen] = process.argv.slice(2);
const forServers = /^(404\.html$|examples)/;
const all = () => readdirSync(folder, { recursive: true }).filter((name) => name.endsWith(".html") && !forServers.test(name));
const pages = chosen.length ? chosen : all();
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] }); // a sandbox needs another user than root
const seen = { console: [], external: [], wide: [], code: [], axe: [], examined: 0, pages: pages.length, found: [] };
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
// Tables without headings, tables that scroll, long code in tables, console blocks, Python, docstrings, pictures.
const EXAMINED = new Set(
  ["index", "getting-started", "limits", "guides/gpu", "guides/javascript", "guides/reports", "reference/commands"]
    .concat(["reference/python-api", "reference/dialects/miopen", "measurements/kernels", "contributing/tree"])
    .map((name) => `${name}.html`),
);

for (const [width, colorScheme] of [[400, "dark"], [1240, "light"]]) {
  const page = await browser.newPage({ viewport: { width, height: 900 }, colorScheme });
  const at = (what) => `${page.url()} (${width}): ${what}`;
  page.on("console", (message) => seen.console.push(at(`${message.type()}: ${message.text()}`)));
  page.on("pageerror", (error) => seen.console.push(at(error.message)));
  page.on("request", (request) => /^(file|data|blob|about):/.test(request.url()) || seen.external.push(at(request.url())));
  for (const name of pages) {
    await page.goto(pathToFileURL(join(folder, name)).href);
    const wider = await page.evaluate(() => document.documentElement.scrollWidth - window.innerWidth);
    if (wider > 0) seen.wide.push(at(wider));
    const code = await page.$$eval("pre > code", (blocks) => blocks.filter((b) => b.scrollWidth > b.clientWidth + 1).length);
    if (code > 0) seen.code.push(at(code));
    if (EXAMINED.has(name)) {
      seen.examined += 1;
      await page.evaluate(axe);
      const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"], preload: false }));
      for (const { id, nodes } of violations) seen.axe.push(at(`${id}: ${nodes[0].html.slice(0, 200)}`));
    }
    const path = `${screenshots}/${name.replaceAll("/", "_")}.${width}.png`;
    if (screenshots) await page.screenshot({ path, fullPage: true });
  }
  await page.goto(pathToFileURL(join(folder, "reference/ops.html")).href);
  if (width === 400) await page.click("label[for=__search].md-icon");
  await page.click("input[name=query]");
  await page.keyboard.type(width === 400 ? "finalize" : "--warmup", { delay: 20 });
  await page.waitForSelector(".md-search-result__item a");
  seen.found.push(await page.$$eval(".md-search-result__item a", (links) => links.map((link) => new URL(link.href).pathname)));
  if (screenshots) await page.screenshot({ path: `${screenshots}/search.${width}.png` });
  if (width > 400) {
    await page.fill("input[name=query]", "");
    await page.click("input[name=query]");
    await page.keyboard.type("gpu", { delay: 20 });
    const isFirst = (name) => document.querySelector(".md-search-result__item > a")?.href.includes(name);
    await page.waitForFunction(isFirst, "/guides/gpu.html", { timeout: 30_000 });
    await page.goto(pathToFileURL(join(folder, "getting-started.html")).href);
    seen.copied = await page.evaluate(() => {
      const block = [...document.querySelectorAll(".language-console")].find((b) => b.textContent.includes("bngrad --version"));
      const button = block.querySelector(".md-code__button[data-md-type=copy], .md-clipboard");
      button.dispatchEvent(new MouseEvent("click", { bubbles: true }));
      return button.dataset.clipboardText;
    });
  }
  await page.close();
}
await browser.close();
console.log(JSON.stringify(seen));
