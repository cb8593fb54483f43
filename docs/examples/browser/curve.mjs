// The loss curve: each step's loss, and their moving average, on a logarithmic scale.
const MARGIN = { left: 56, right: 8, top: 8, bottom: 22 };
const SMOOTHING = 0.9;

/** Draws the losses of the steps done so far; `steps` is the number of steps that the horizontal axis has. */
export function drawCurve(canvas, losses, steps) {
  const scale = window.devicePixelRatio;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  [canvas.width, canvas.height] = [width * scale, height * scale];
  const color = (name) => getComputedStyle(canvas).getPropertyValue(name);
  const context = canvas.getContext("2d");
  context.scale(scale, scale);
  context.font = "12px system-ui, sans-serif";

  const finite = losses.filter((loss) => loss > 0 && loss < Infinity);
  const low = Math.floor(Math.log10(Math.min(0.1, ...finite)));
  const high = Math.log10(Math.max(5, ...finite));
  const x = (step) => MARGIN.left + (step / steps) * (width - MARGIN.left - MARGIN.right);
  const y = (loss) => {
    const part = (Math.log10(loss) - low) / (high - low);
    return height - MARGIN.bottom - Math.max(0, part) * (height - MARGIN.top - MARGIN.bottom);
  };

  context.strokeStyle = color("--line");
  context.fillStyle = color("--quiet");
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (let power = low; power <= high; ++power) {
    line(context, [[x(0), y(10 ** power)], [x(steps), y(10 ** power)]], 1);
    context.fillText(String(Number((10 ** power).toPrecision(1))), MARGIN.left - 8, y(10 ** power));
  }
  context.textBaseline = "bottom";
  for (const [step, align] of [[0, "left"], [steps / 2, "center"], [steps, "right"]]) {
    context.textAlign = align;
    context.fillText(step === steps ? `${step} steps` : step.toFixed(0), x(step), height);
  }

  context.strokeStyle = color("--accent");
  context.globalAlpha = 0.35;
  line(context, losses.map((loss, i) => [x(i + 1), y(loss)]), 1);
  context.globalAlpha = 1;
  let mean = 0;
  const smooth = losses.map((loss, i) => {
    mean = SMOOTHING * mean + (1 - SMOOTHING) * loss;
    return [x(i + 1), y(mean / (1 - SMOOTHING ** (i + 1)))];
  });
  line(context, smooth, 2);
}

function line(context, points, width) {
  context.lineWidth = width;
  context.beginPath();
  for (const [x, y] of points) context.lineTo(x, y);
  context.stroke();
}
