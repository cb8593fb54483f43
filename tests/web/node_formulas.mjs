// Evaluates schedules and conditions on sizes: the cases are JSON on standard input, the results JSON on standard output.
import { readFileSync } from "node:fs";
import * as schedules from "../../docs/examples/step/schedules.mjs";
import { checkLabels } from "../../docs/examples/step/batch.mjs";
import { checkSizes, holds } from "../../docs/examples/step/sizes.mjs";

const messageOf = (action) => {
  try {
    return action();
  } catch ({ message }) {
    return message;
  }
};
const cases = JSON.parse(readFileSync(0, "utf8"));
console.log(
  JSON.stringify({
    rates: cases.rates.map(([name, ...values]) => messageOf(() => Array.from({ length: 12 }, (_, i) => schedules[name](...values)(i)))),
    conditions: cases.conditions.map(([condition, sizes]) => [holds(condition, sizes), messageOf(() => checkSizes([condition], sizes))]),
    labels: cases.labels.map(([range, labels]) =>
      messageOf(() => checkLabels({ y: labels }, [{ inputs: ["y"], value: "y", unchecked: null, ...range }])),
    ),
  }),
);
