// The images of digits, and the batches that every language trains on; prepare.py writes them.
import { readSafetensors } from "./step/safetensors.mjs";

export class Digits {
  constructor(file) {
    this.tensors = readSafetensors(file);
    const { shape } = this.tensors.batches;
    [this.steps, this.size] = shape;
    const images = this.tensors["training/images"].data;
    [this.white, this.black] = [Math.min(...images), Math.max(...images)];
  }

  /** Returns the images and labels of a training step. */
  batch(step) {
    const rows = this.tensors.batches.data.subarray(step * this.size, (step + 1) * this.size);
    return { images: pick(this.tensors["training/images"], rows), labels: pick(this.tensors["training/labels"], rows) };
  }

  /** Returns the images and labels that no training step has. */
  get test() {
    return { images: this.tensors["test/images"].data, labels: this.tensors["test/labels"].data };
  }

  /** Returns the ink in each pixel of a test image, 0 to 1. */
  ink(row) {
    const image = this.test.images.subarray(64 * row, 64 * row + 64);
    return image.map((value) => (value - this.white) / (this.black - this.white));
  }

  /** Returns an image for the network from the ink in each pixel, 0 to 1. */
  normalized(ink) {
    return ink.map((value) => this.white + value * (this.black - this.white));
  }
}

/** Returns the share of rows of logits, [N, classes], with the largest value at the label. */
export function accuracy(logits, labels) {
  const classes = logits.length / labels.length;
  let right = 0;
  labels.forEach((label, row) => {
    const scores = logits.subarray(row * classes, (row + 1) * classes);
    right += argmax(scores) === Number(label);
  });
  return right / labels.length;
}

/** Returns the index of the largest value. */
export function argmax(values) {
  return values.indexOf(Math.max(...values));
}

function pick({ shape, data }, rows) {
  const width = data.length / shape[0];
  const chosen = new data.constructor(rows.length * width);
  rows.forEach((row, at) => chosen.set(data.subarray(row * width, (row + 1) * width), at * width));
  return chosen;
}
