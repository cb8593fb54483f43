// The data of one batch, checked before ONNX Runtime sees them.
import { ARRAYS } from "./safetensors.mjs";
import { checkSizes } from "./sizes.mjs";

/** Checks that the shapes and types of the data inputs are among those that `shapesOf` and typed arrays have. */
export function checkInputs(inputs) {
  for (const [name, { dtype, shape }] of Object.entries(inputs)) {
    if (!ARRAYS[dtype]) throw new Error(`${name} has type ${dtype}; supported are ${Object.keys(ARRAYS).join(", ")}`);
    if (!shape || symbols(shape).length > 1) {
      throw new Error(`${name} has shape ${shape && `[${shape.join(", ")}]`}; expected at most one symbolic dimension`);
    }
  }
}

/**
 * Returns the shape of each array of a batch. A symbolic dimension is what is left of the length.
 * Throws if the sizes do not fulfil a condition.
 */
export function shapesOf(batch, inputs, conditions) {
  checkNames(batch, Object.keys(inputs));
  const [shapes, sizes] = [{}, {}];
  for (const [name, { dtype, shape }] of Object.entries(inputs)) {
    const data = batch[name];
    if (!(data instanceof ARRAYS[dtype])) throw new Error(`${name} has to be a ${ARRAYS[dtype].name}`);
    const [symbol] = symbols(shape);
    const width = size(shape.filter(Number.isInteger));
    const items = data.length / width;
    if (symbol === undefined ? items !== 1 : !(items > 0 && Number.isInteger(items))) {
      const expected = symbol === undefined ? width : width === 1 ? "at least 1" : `a multiple of ${width}`;
      throw new Error(`${name} has ${data.length} elements; expected ${expected}`);
    }
    const [first, other] = symbol ? (sizes[symbol] ??= [name, items]) : [name, items];
    if (items !== other) {
      throw new Error(`${name} has ${symbol} = ${items} and ${first} has ${symbol} = ${other}; expected the same`);
    }
    shapes[name] = shape.map((dim) => (Number.isInteger(dim) ? dim : items));
  }
  checkSizes(conditions, Object.fromEntries(Object.entries(sizes).map(([symbol, [, items]]) => [symbol, items])));
  return shapes;
}

/**
 * Checks class labels and other indices among the data, as ONNX reads a negative one as counted from the end. Those that
 * the model computes from the data are not checked.
 */
export function checkLabels(batch, labels) {
  for (const { inputs, value, minimum, maximum, ignored, unchecked } of labels ?? []) {
    if (unchecked !== null || inputs.length !== 1 || inputs[0] !== value) continue;
    for (const label of batch[value]) {
      const number = Math.trunc(Number(label)); // as Cast to integers does
      if ((number >= minimum && !(maximum !== null && number > maximum)) || Number(label) === ignored) continue;
      const limit = maximum === null ? `${minimum} or more` : `${minimum} to ${maximum}`;
      const also = ignored === null ? "" : `, or ${ignored} to leave a sample out`;
      throw new Error(`${value} has the label ${label}; expected ${limit}${also}`);
    }
  }
}

/** Returns the number of elements of a tensor. */
export function size(shape) {
  return shape.reduce((product, dim) => product * dim, 1);
}

/** Returns names as text: "a, b and c". */
export function listed(names) {
  return names.join(", ").replace(/, ([^,]*)$/, " and $1");
}

function checkNames(batch, names) {
  const missing = names.find((name) => batch?.[name] === undefined);
  const unknown = Object.keys(batch ?? {}).find((name) => !names.includes(name));
  const faults = [];
  if (missing !== undefined) faults.push(`there is no data for '${missing}'`);
  if (unknown !== undefined) faults.push(`there is no input '${unknown}'`);
  if (faults.length > 0) throw new Error(`${faults.join(", and ")}; expected ${listed(names)}`);
}

function symbols(shape) {
  return shape.filter((dim) => !Number.isInteger(dim));
}
