// A canvas to draw a digit on, and what the network sees of it.
//
// The network's images were made from 32 x 32 bitmaps in which the digit fills the height; each of their 8 x 8 pixels
// counts the ink in a block of 4 x 4. A drawing is brought to the same form.
const BITMAP = 32;
const BLOCK = 4;
const PEN = 4.5; // in pixels of the bitmap

export class Pad {
  #strokes = [];

  /** Calls `changed` after each change of the drawing. */
  constructor(canvas, changed) {
    this.canvas = canvas;
    this.changed = changed;
    const point = (event) => {
      const box = canvas.getBoundingClientRect();
      return [((event.clientX - box.left) / box.width) * canvas.width, ((event.clientY - box.top) / box.height) * canvas.height];
    };
    canvas.addEventListener("pointerdown", (event) => {
      canvas.setPointerCapture(event.pointerId);
      this.#strokes.push([point(event)]);
      this.#draw();
    });
    canvas.addEventListener("pointermove", (event) => {
      if (!canvas.hasPointerCapture(event.pointerId)) return;
      this.#strokes.at(-1).push(point(event));
      this.#draw();
    });
  }

  clear() {
    this.#strokes = [];
    this.#draw();
  }

  /** Returns the ink in each of the 8 x 8 blocks, 0 to 1, or null if nothing is drawn. */
  ink() {
    const points = this.#strokes.flat();
    if (points.length === 0) return null;
    const [left, top] = [0, 1].map((axis) => Math.min(...points.map((point) => point[axis])));
    const [right, bottom] = [0, 1].map((axis) => Math.max(...points.map((point) => point[axis])));
    const scale = (BITMAP - PEN) / Math.max(right - left, bottom - top, 1);
    const context = new OffscreenCanvas(BITMAP, BITMAP).getContext("2d");
    context.translate(BITMAP / 2, BITMAP / 2);
    context.scale(scale, scale);
    context.translate(-(left + right) / 2, -(top + bottom) / 2);
    stroke(context, this.#strokes, PEN / scale);
    const { data } = context.getImageData(0, 0, BITMAP, BITMAP);
    const side = BITMAP / BLOCK;
    const ink = new Float32Array(side * side);
    for (let y = 0; y < BITMAP; ++y) {
      for (let x = 0; x < BITMAP; ++x) {
        const alpha = data[4 * (y * BITMAP + x) + 3] / 255;
        ink[Math.floor(y / BLOCK) * side + Math.floor(x / BLOCK)] += alpha / BLOCK ** 2;
      }
    }
    return ink;
  }

  #draw() {
    const context = this.canvas.getContext("2d");
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    context.strokeStyle = getComputedStyle(this.canvas).color;
    stroke(context, this.#strokes, this.canvas.width / 14);
    this.changed();
  }
}

/** Draws 8 x 8 values from 0 to 1 in shades of gray. */
export function drawPixels(canvas, ink) {
  const side = Math.sqrt(ink.length);
  [canvas.width, canvas.height] = [side, side];
  const image = new ImageData(side, side);
  ink.forEach((value, i) => image.data.set([255 * value, 255 * value, 255 * value, 255], 4 * i));
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function stroke(context, strokes, width) {
  context.lineWidth = width;
  context.lineCap = context.lineJoin = "round";
  for (const points of strokes) {
    context.beginPath();
    context.moveTo(...points[0]);
    for (const point of points) context.lineTo(...point); // one point alone is a dot
    context.stroke();
  }
}
