// The .safetensors format: the length of a JSON header as uint64, the header, and the tensors' bytes, little-endian.
import { bytesOf, concatenate } from "./onnx_file.mjs";

export const ARRAYS = {
  float32: Float32Array, float64: Float64Array, int64: BigInt64Array, int32: Int32Array, uint8: Uint8Array, bool: Uint8Array,
};
const CODES = { float32: "F32", float64: "F64", int64: "I64", int32: "I32", uint8: "U8", bool: "BOOL" };
const DTYPES = Object.fromEntries(Object.entries(CODES).map(([dtype, code]) => [code, dtype]));

/** Returns the tensors of a file by name, each as {dtype, shape, data}. */
export function readSafetensors(file) {
  const bytes = new Uint8Array(file);
  if (bytes.length < 8) throw new Error("this is no .safetensors file: it has fewer than 8 bytes");
  const start = 8 + Number(new DataView(bytes.buffer).getBigUint64(0, true));
  if (start > bytes.length) throw new Error("the .safetensors file is truncated, or is none");
  const { __metadata__: _, ...header } = JSON.parse(new TextDecoder().decode(bytes.subarray(8, start)));
  const tensors = {};
  for (const [name, { dtype: code, shape, data_offsets: [begin, end] }] of Object.entries(header)) {
    const dtype = DTYPES[code];
    if (!dtype) throw new Error(`tensor ${name} has type ${code}; supported are ${Object.keys(DTYPES).join(", ")}`);
    if (start + end > bytes.length) throw new Error(`the .safetensors file is truncated: tensor ${name}`);
    const size = shape.reduce((product, dim) => product * dim, ARRAYS[dtype].BYTES_PER_ELEMENT);
    if (end - begin !== size) throw new Error(`tensor ${name} has ${end - begin} bytes; expected ${size}`);
    tensors[name] = { dtype, shape, data: new ARRAYS[dtype](bytes.buffer.slice(start + begin, start + end)) };
  }
  return tensors;
}

/** Returns the bytes of a file with these tensors and this metadata, an object of strings. */
export function writeSafetensors(tensors, metadata) {
  const header = { __metadata__: metadata };
  const parts = [];
  let end = 0;
  // Wide types first, so that every tensor is aligned.
  const width = ([, { data }]) => data.BYTES_PER_ELEMENT;
  for (const [name, { dtype, shape, data }] of Object.entries(tensors).sort((a, b) => width(b) - width(a))) {
    header[name] = { dtype: CODES[dtype], shape, data_offsets: [end, (end += data.byteLength)] };
    parts.push(bytesOf(data));
  }
  const json = new TextEncoder().encode(JSON.stringify(header));
  const padded = new Uint8Array(8 + Math.ceil(json.length / 8) * 8).fill(" ".charCodeAt());
  new DataView(padded.buffer).setBigUint64(0, BigInt(padded.length - 8), true);
  padded.set(json, 8);
  return concatenate(padded, ...parts);
}
