// Uses the HTML reports as a person does: report_page.mjs CHROMIUM FOLDER. Reads validate.html, hostile.html,
// inspect.html, bench.html, train.html, incomplete.html, compare.html, changes.html and rewrite.html of the folder, writes screenshots to it, and prints as JSON what the pages showed.
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";
import { pathToFileURL } from "node:url";
import { chromium } from "playwright-core";

const [executablePath, folder] = process.argv.slice(2);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const browser = await chromium.launch({ executablePath, args: ["--no-sandbox"] }); // a sandbox needs another user than root
const seen = { pages: [], accessibility: [], messages: [], requests: [] };

async function opened(name, options, use) {
  const context = await browser.newContext(options);
  const page = await context.newPage();
  const url = pathToFileURL(join(folder, `${name}.html`)).href;
  page.on("console", (message) => seen.messages.push(`${name}: ${message.text()}`));
  page.on("pageerror", (error) => seen.messages.push(`${name}: ${error.message}`));
  page.on("request", (request) => { if (request.url() !== url) seen.requests.push(request.url()); });
  await page.goto(url);
  const result = await use(page);
  await context.close();
  return result;
}
async function violations(page) {
  await page.evaluate(axe);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const described = found.violations.map(({ id, impact, nodes }) => ({ id, impact, nodes: nodes.map((node) => node.html.slice(0, 200)) }));
  return { violations: described, checked: found.passes.length };
}
const background = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
// With a caret of its own, playwright adds no style, which the page's policy would refuse.
const screenshot = (page, name, options) => page.screenshot({ path: join(folder, `${name}.png`), caret: "initial", ...options });

for (const name of ["validate", "hostile", "inspect", "bench", "train", "incomplete", "compare", "changes", "rewrite"]) {
  for (const width of [400, 1200]) {
    for (const colorScheme of ["light", "dark"]) {
      await opened(name, { viewport: { width, height: 900 }, colorScheme }, async (page) => {
        const sizes = await page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
        seen.pages.push({ name, width, colorScheme, sizes, background: await background(page) });
        // Each width and each color scheme once: it takes seconds.
        if ((width === 400) === (colorScheme === "light")) seen.accessibility.push({ name, ...(await violations(page)) });
        const view = `${name}-${width}-${colorScheme}`;
        if (view === "validate-1200-light") await page.locator(".marks use.failed").last().hover({ force: true });
        const height = { validate: width === 400 ? 1420 : 1312, inspect: 880, bench: 1232, train: 1250, compare: 1320, rewrite: 1010 }[name];
        if (height) await screenshot(page, view, { fullPage: true, clip: { x: 0, y: 0, width, height } });
      });
    }
  }
}

const rows = (page) => page.$$eval("#comparisons tbody tr", (all) => all.map((row) => [...row.cells].map((cell) => cell.textContent)));
const sorts = (page) => page.$$eval("#comparisons th", (all) => Object.fromEntries(all.filter((head) => head.ariaSort).map((head) => [head.textContent, head.ariaSort])));
const status = (page) => page.textContent("#comparisons .pager output");
const marks = (page) => page.$$eval(".marks use", (all) => all.length);
const tip = async (page) => ((await page.isVisible(".tip")) ? page.textContent(".tip") : null);

seen.table = await opened("validate", { viewport: { width: 1200, height: 900 } }, async (page) => {
  const found = { first: await rows(page), status: await status(page) };
  await page.click("#comparisons th button:has-text('max abs')");
  found.descending = { rows: await rows(page), sorts: await sorts(page) };
  await page.focus("#comparisons th button:has-text('max abs')");
  await page.keyboard.press("Enter");
  found.ascending = { rows: await rows(page), sorts: await sorts(page) };
  await page.keyboard.press("Space");
  found.restored = { rows: await rows(page), sorts: await sorts(page) };
  await page.click("#comparisons .pager button:has-text('Next')");
  found.next = { rows: await rows(page), status: await status(page) };
  await page.fill("#comparisons input[type=search]", "STAGE2.block1.1.bn.scale_grad");
  found.filtered = { rows: await rows(page), status: await status(page) };
  await page.fill("#comparisons input[type=search]", "no such name");
  found.empty = { rows: await rows(page), status: await status(page) };
  await page.fill("#comparisons input[type=search]", "");
  await page.check("#comparisons input[type=checkbox]");
  found.failed = { rows: await rows(page), status: await status(page) };
  await page.selectOption("#comparisons label:has-text('check') select", "lock-step");
  found.selected = { rows: await rows(page), status: await status(page) };
  return found;
});

seen.picture = await opened("validate", { viewport: { width: 1200, height: 900 } }, async (page) => {
  const found = { marks: await marks(page), tip: await tip(page) };
  await page.locator(".area").scrollIntoViewIfNeeded();
  const box = await page.locator(".marks use.failed").first().boundingBox();
  await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2);
  found.hovered = await tip(page);
  await page.mouse.move(5, 5);
  found.left = await tip(page);
  const area = await page.locator(".area").boundingBox();
  await page.mouse.move(area.x + 0.5 * area.width, area.y + 20);
  await page.mouse.down();
  await page.mouse.move(area.x + 0.75 * area.width, area.y + 60, { steps: 4 });
  await page.mouse.up();
  found.dragged = { marks: await marks(page), axis: await page.textContent(".x-axis") };
  await page.locator(".area").dblclick({ position: { x: 5, y: 5 } });
  found.reset = await marks(page);
  await page.selectOption(".chart label:has-text('check') select", "float64");
  found.check = await marks(page);
  await page.selectOption(".chart label:has-text('implementation') select", "native");
  found.nothing = await marks(page);
  await page.selectOption(".chart label:has-text('check') select", "");
  found.implementation = await marks(page);
  await page.selectOption(".chart label:has-text('implementation') select", "");
  await page.click("button[aria-label='Zoom in']");
  found.zoomed = await marks(page);
  await page.click("button[aria-label='Show all nodes']");
  await page.focus(".area");
  await page.keyboard.press("ArrowRight");
  found.keys = [await tip(page)];
  for (const key of ["ArrowRight", "ArrowDown", "End", "Escape", "Home"]) {
    await page.keyboard.press(key);
    found.keys.push(await tip(page));
  }
  await page.keyboard.press("+");
  found.key = { marks: await marks(page), tip: await tip(page) };
  await page.keyboard.press("0");
  found.all = await marks(page);
  await page.keyboard.press("Enter");
  found.entered = { filter: await page.inputValue("#comparisons input[type=search]"), rows: (await rows(page)).length };
  return found;
});

/** Returns the cells of the row that the address names, once the page has followed it. */
async function marked(page) {
  await page.waitForFunction(() => location.hash && document.querySelector("tr.marked")?.id === location.hash.slice(1));
  return page.$eval("tr.marked", (row) => [...row.cells].map((cell) => cell.textContent));
}
seen.graph = await opened("inspect", { viewport: { width: 1200, height: 900 } }, async (page) => {
  const found = { nodes: await page.locator(".graph .node").count() };
  await page.click(".graph a[href='#batch-norms-4']");
  found.batchNorm = (await marked(page)).slice(0, 2);
  await page.click(".graph a[href='#nodes-73']");
  found.node = (await marked(page)).slice(0, 2);
  await page.fill("#nodes input[type=search]", "no such name");
  await page.click(".graph a[href='#nodes-73']");
  found.again = (await marked(page)).slice(0, 2);
  await page.click(".copy");
  await page.waitForFunction(() => document.querySelector(".copy").textContent !== "Copy");
  found.copy = await page.textContent(".copy");
  await page.goto(`${page.url().split("#")[0]}#nodes-59`);
  await page.reload();
  found.start = (await marked(page)).slice(0, 2);
  return found;
});
seen.graph.static = await opened("inspect", { viewport: { width: 400, height: 800 }, javaScriptEnabled: false }, (page) =>
  page.$$eval(".graph a", (links) => links.filter((link) => document.querySelector(link.getAttribute("href"))).length));

seen.culprits = await opened("validate", { viewport: { width: 1200, height: 900 } }, async (page) => {
  const name = (await page.textContent(".culprits a")).trim();
  await page.click(".culprits li:first-child a:nth-of-type(2)");
  const row = await marked(page);
  const centre = await page.locator(".graph .centre").first();
  const region = await page.locator(".graph").first().boundingBox(), box = await centre.boundingBox();
  const visible = box.y >= region.y && box.y + box.height <= region.y + region.height;
  await centre.click();
  const same = await marked(page);
  return { name, row, visible, same };
});

seen.theme = await opened("validate", { viewport: { width: 1200, height: 900 }, colorScheme: "light" }, async (page) => {
  const state = async () => [(await page.textContent(".theme")).trim(), await background(page)];
  const found = [await state()];
  await page.click(".theme");
  found.push(await state());
  await page.reload();
  found.push(await state());
  return found;
});

seen.touch = await opened("validate", { viewport: { width: 400, height: 800 }, hasTouch: true, isMobile: true }, async (page) => {
  await page.locator(".area").scrollIntoViewIfNeeded();
  const box = await page.locator(".marks use.failed").last().boundingBox();
  await page.touchscreen.tap(box.x + box.width / 2, box.y + box.height / 2);
  const found = { tip: await tip(page) };
  const inside = await page.locator(".tip").boundingBox();
  found.inside = inside.x >= 0 && inside.x + inside.width <= 400;
  return found;
});

seen.static = await opened("validate", { viewport: { width: 400, height: 800 }, javaScriptEnabled: false }, async (page) => ({
  verdict: await page.textContent(".verdict"),
  rows: await page.locator("#comparisons tbody tr").count(),
  marks: await page.locator(".marks use").count(),
  buttons: await page.locator("button:visible, input:visible, select:visible").count(),
}));

seen.print = await opened("validate", { viewport: { width: 800, height: 800 }, colorScheme: "dark" }, async (page) => {
  await page.emulateMedia({ media: "print" });
  return { controls: await page.locator("button:not(th button):visible, select:visible, input:visible").count(), background: await background(page) };
});

seen.large = await opened("hostile", { viewport: { width: 1200, height: 900 } }, async (page) => {
  const found = { status: await status(page), names: (await rows(page)).slice(0, 12).map((cells) => cells[2]), marks: await marks(page) };
  found.milliseconds = await page.evaluate(() => {
    const start = performance.now();
    const input = document.querySelector("#comparisons input[type=search]");
    input.value = "layer7";
    input.dispatchEvent(new Event("input"));
    for (const head of [...document.querySelectorAll("#comparisons th button")].slice(0, 4)) head.click();
    return performance.now() - start;
  });
  found.run = await page.evaluate(() => window.hostile ?? null);
  return found;
});
await browser.close();
console.log(JSON.stringify(seen));
