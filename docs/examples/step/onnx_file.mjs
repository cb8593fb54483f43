// The two things that a training loop does to an .onnx file itself: it reads the metadata, and makes an input a constant.
// An .onnx file is a ModelProto in protobuf's wire format: https://protobuf.dev/programming-guides/encoding.

const MODEL = { graph: 7, metadata_props: 14 };
const ENTRY = { key: 1, value: 2 };
const GRAPH = { initializer: 5, input: 11 };
const VALUE = { name: 1 };
const TENSOR = { dims: 1, data_type: 2, name: 8, raw_data: 9 };
const DATA_TYPES = { float32: 1, uint8: 2, int32: 6, int64: 7, bool: 9, float64: 11 };
const BYTES = 2; // the wire type of strings, bytes and messages

/** Returns metadata_props as an object; onnxruntime-web and onnxruntime-node have no function for it. */
export function readMetadata(file) {
  const metadata = {};
  for (const { field, content } of fields(file)) {
    if (field === MODEL.metadata_props) metadata[text(content, ENTRY.key)] = text(content, ENTRY.value);
  }
  return metadata;
}

/** Returns a copy of a model in which the input `name` is a constant. */
export function withConstant(file, name, { dtype, shape, data }) {
  const isInput = ({ field, content }) => field === GRAPH.input && text(content, VALUE.name) === name;
  const tensor = concatenate(
    ...shape.map((dim) => varints(TENSOR.dims << 3, dim)),
    varints(TENSOR.data_type << 3, DATA_TYPES[dtype]),
    ...message(TENSOR.name, new TextEncoder().encode(name)),
    ...message(TENSOR.raw_data, bytesOf(data)),
  );
  const model = [];
  let found = false;
  for (const { field, content, whole } of fields(file)) {
    if (field !== MODEL.graph) {
      model.push(whole);
      continue;
    }
    const graph = [...fields(content)];
    found ||= graph.some(isInput);
    const kept = graph.filter((part) => !isInput(part)).map((part) => part.whole);
    model.push(...message(MODEL.graph, concatenate(...kept, ...message(GRAPH.initializer, tensor))));
  }
  if (!found) throw new Error(`the model has no input ${name}`);
  return concatenate(...model);
}

/** Returns byte arrays one after the other. */
export function concatenate(...parts) {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let end = 0;
  for (const part of parts) {
    all.set(part, end);
    end += part.length;
  }
  return all;
}

/** Returns the bytes of a typed array. */
export function bytesOf(array) {
  return new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
}

/** Yields the fields of a message: the number, the content of a string, bytes or message, and the field as a whole. */
function* fields(bytes) {
  let at = 0;
  const varint = () => {
    let value = 0;
    for (let scale = 1; at < bytes.length; scale *= 128) {
      const byte = bytes[at++];
      value += (byte % 128) * scale;
      if (byte < 128) break;
    }
    return value;
  };
  while (at < bytes.length) {
    const start = at;
    const tag = varint();
    const wire = tag % 8;
    let content;
    if (wire === 0) varint();
    else if (wire === 1) at += 8;
    else if (wire === 5) at += 4;
    else if (wire === BYTES) {
      const length = varint();
      content = bytes.subarray(at, at + length);
      at += length;
    } else at = Infinity;
    if (at > bytes.length) throw new Error("this is no .onnx file, or a truncated one");
    yield { field: Math.floor(tag / 8), content, whole: bytes.subarray(start, at) };
  }
}

function text(message, number) {
  const found = [...fields(message)].find(({ field }) => field === number);
  return new TextDecoder().decode(found?.content);
}

function message(field, content) {
  return [varints((field << 3) | BYTES, content.length), content];
}

function varints(...values) {
  const bytes = [];
  for (let value of values) {
    for (; value >= 128; value = Math.floor(value / 128)) bytes.push((value % 128) + 128);
    bytes.push(value);
  }
  return Uint8Array.from(bytes);
}
