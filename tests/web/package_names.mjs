// Prints as JSON the names that the package exports, with the members of its classes: what it has, and what its types say.
import { readFileSync } from "node:fs";
import ts from "typescript";
import * as bngrad from "../../docs/examples/step/index.mjs";

const own = (object, hidden) => Object.getOwnPropertyNames(object).filter((name) => !hidden.includes(name));
const actual = {};
for (const [name, value] of Object.entries(bngrad)) {
  const isClass = value.prototype !== undefined;
  actual[name] = isClass ? [...new Set([...own(value.prototype, ["constructor"]), ...own(value, ["length", "name", "prototype"])])].sort() : [];
}

const path = new URL("../../docs/examples/step/index.d.ts", import.meta.url);
const typed = {};
for (const node of ts.createSourceFile("index.d.ts", readFileSync(path, "utf8"), ts.ScriptTarget.Latest).statements) {
  if (ts.isFunctionDeclaration(node)) typed[node.name.text] = [];
  if (!ts.isClassDeclaration(node)) continue;
  const members = node.members.filter((member) => !ts.isConstructorDeclaration(member) && !ts.isPropertyDeclaration(member));
  typed[node.name.text] = [...new Set(members.map((member) => member.name.text))].sort();
}
console.log(JSON.stringify({ actual, typed }));
