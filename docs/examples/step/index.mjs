export { Trainer } from "./trainer.mjs";
export { TrainingStep } from "./step.mjs";
export { cosineSchedule, linearSchedule, stepSchedule } from "./schedules.mjs";
export { readSafetensors, writeSafetensors } from "./safetensors.mjs";
export { readMetadata, withConstant } from "./onnx_file.mjs";
