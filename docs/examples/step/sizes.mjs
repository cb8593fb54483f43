// Conditions on the sizes of a batch, as the metadata of a training step have them: ["==", ["%", "N", 2], 0].
// Numbers are fractions, [numerator, denominator > 0], of BigInt.

const floor = ([n, d]) => n / d - (n % d < 0n ? 1n : 0n);
const minus = ([a, b], [c, d]) => [a * d - c * b, b * d];
const times = ([a, b], [c, d]) => [a * c, b * d];
const over = ([a, b], [c, d]) => {
  if (c === 0n) throw new RangeError("division by zero");
  return c < 0n ? [-a * d, -b * c] : [a * d, b * c];
};
const whole = (n) => [n, 1n];
const sign = (a, b) => Math.sign(Number(minus(a, b)[0]));

const NUMBERS = {
  "+": (...terms) => terms.reduce(([a, b], [c, d]) => [a * d + c * b, b * d]),
  "-": minus,
  "*": (...factors) => factors.reduce(times),
  "/": over,
  "//": (a, b) => whole(floor(over(a, b))),
  "%": (a, b) => minus(a, times(b, whole(floor(over(a, b))))),
  min: (...terms) => terms.reduce((a, b) => (sign(b, a) < 0 ? b : a)),
  max: (...terms) => terms.reduce((a, b) => (sign(b, a) > 0 ? b : a)),
  ceil: ([n, d]) => whole(-floor([-n, d])),
  floor: (a) => whole(floor(a)),
};
const COMPARISONS = {
  "==": (a, b) => sign(a, b) === 0,
  "!=": (a, b) => sign(a, b) !== 0,
  "<": (a, b) => sign(a, b) < 0,
  "<=": (a, b) => sign(a, b) <= 0,
  ">": (a, b) => sign(a, b) > 0,
  ">=": (a, b) => sign(a, b) >= 0,
};
const CONDITIONS = {
  and: (...conditions) => conditions.every(Boolean),
  or: (...conditions) => conditions.some(Boolean),
  not: (condition) => !condition,
};
const OPERATORS = { ...NUMBERS, ...COMPARISONS, ...CONDITIONS };

/** Tests whether a condition holds for sizes by name; one that divides by zero, or has an unknown size, does not. */
export function holds(condition, sizes) {
  try {
    return valueOf(condition, sizes) === true;
  } catch (error) {
    if (error instanceof RangeError) return false;
    throw error;
  }
}

/** Checks the sizes of a batch; throws an error that names the first condition that does not hold. */
export function checkSizes(conditions, sizes) {
  for (const condition of conditions ?? []) {
    if (holds(condition, sizes)) continue;
    const present = namesIn(condition).filter((name) => name in sizes);
    const actual = present.map((name) => `${name} = ${sizes[name]}`).join(", ");
    throw new Error(
      `the data have ${actual}; expected ${textOf(condition)}: for other sizes the model that was exported computes ` +
        "something else, or nothing",
    );
  }
}

function valueOf(term, sizes) {
  if (Array.isArray(term)) {
    const [name, ...operands] = term;
    if (!Object.hasOwn(OPERATORS, name)) throw new Error(`the step has a condition with the unknown operator ${name}`);
    return OPERATORS[name](...operands.map((operand) => valueOf(operand, sizes)));
  }
  const size = typeof term === "string" ? sizes[term] : term;
  if (size === undefined) throw new RangeError(`the size ${term} is unknown`);
  return whole(BigInt(size));
}

function namesIn(term) {
  if (Array.isArray(term)) return [...new Set(term.slice(1).flatMap(namesIn))];
  return typeof term === "string" ? [term] : [];
}

function textOf(term, inner = false) {
  if (!Array.isArray(term)) return String(term);
  const [name, ...operands] = term;
  if (/^[a-z]/.test(name) && name !== "and" && name !== "or") return `${name}(${operands.map((operand) => textOf(operand)).join(", ")})`;
  const isComparison = Object.hasOwn(COMPARISONS, name);
  const text = operands.map((operand) => textOf(operand, !isComparison)).join(` ${name} `);
  return inner && !isComparison ? `(${text})` : text;
}
