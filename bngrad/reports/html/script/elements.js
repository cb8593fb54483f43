// What the other files make elements and texts with.

const ROOT = document.documentElement;

/** Makes an element with attributes, properties in `on` as listeners, and children. */
function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
function makeSvg(tag, attributes) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  return element;
}
/** A name, which may be broken into lines behind its separators. */
const name = (text) => make("bdi", { class: "name" }, ...text.split(/(?<=[./_:])/).flatMap((part, i) => (i ? [make("wbr"), part] : [part])));
const read = (element) => JSON.parse(element.querySelector(":scope > script[type='application/json']").textContent);
const grouped = (count) => count.toLocaleString("en-US");
const option = (text) => make("option", { value: text }, text);
