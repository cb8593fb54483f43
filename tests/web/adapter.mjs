// The arguments with which Chromium without a GPU has a WebGPU adapter, in software.
export const ADAPTER = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader", "--enable-features=Vulkan"];
