// Learning rates as functions of the number of updates, by the formulas of the Python package.

const START = 1 / 3; // of a warm-up, as in PyTorch's LinearLR

/** Returns a rate that changes linearly from `rate * start` to `rate * end`, and then is constant. */
export function linearSchedule(rate, total, { start = START, end = 1 } = {}) {
  check({ rate, start, end }, { total });
  return (update) => rate * (start + ((end - start) * Math.min(update, total)) / total);
}

/** Returns a rate that falls to a minimum along half a cosine, by choice after a linear warm-up. */
export function cosineSchedule(rate, total, { minimum = 0, warmup = 0, start = START } = {}) {
  check({ rate, minimum, start }, { total });
  if (!(Number.isInteger(warmup) && warmup >= 0 && warmup < total)) {
    throw new Error(`warmup is ${warmup}; expected an integer from 0 to less than the number of updates, ${total}`);
  }
  return (update) => {
    if (update < warmup) return rate * (start + ((1 - start) * update) / warmup);
    const share = Math.min(update - warmup, total - warmup) / (total - warmup);
    return minimum + ((rate - minimum) * (1 + Math.cos(Math.PI * share))) / 2;
  };
}

/** Returns a rate that is multiplied by a factor every `every` updates. */
export function stepSchedule(rate, every, { factor = 0.1 } = {}) {
  check({ rate, factor }, { every });
  return (update) => rate * factor ** Math.floor(update / every);
}

function check(rates, counts) {
  for (const [name, rate] of Object.entries(rates)) {
    if (!(rate >= 0 && rate < Infinity)) throw new Error(`${name} is ${rate}; expected a finite number, at least 0`);
  }
  for (const [name, count] of Object.entries(counts)) {
    if (!(Number.isInteger(count) && count >= 1)) throw new Error(`${name} is ${count}; expected an integer, at least 1`);
  }
}
