# A CMake toolchain file: cross-compiles with zig (PyPI: ziglang).
# -DBNGRAD_ZIG= is the path of the program, -DBNGRAD_ZIG_TARGET= the target as zig spells it: aarch64-macos.11.0.
set(CMAKE_TRY_COMPILE_PLATFORM_VARIABLES BNGRAD_ZIG BNGRAD_ZIG_TARGET)

if(BNGRAD_ZIG_TARGET MATCHES "windows")
  set(CMAKE_SYSTEM_NAME Windows)
elseif(BNGRAD_ZIG_TARGET MATCHES "macos")
  set(CMAKE_SYSTEM_NAME Darwin)
else()
  set(CMAKE_SYSTEM_NAME Linux)
endif()
string(REGEX REPLACE "-.*" "" CMAKE_SYSTEM_PROCESSOR "${BNGRAD_ZIG_TARGET}")

set(CMAKE_C_COMPILER "${BNGRAD_ZIG}" cc -target ${BNGRAD_ZIG_TARGET})
set(CMAKE_CXX_COMPILER "${BNGRAD_ZIG}" c++ -target ${BNGRAD_ZIG_TARGET})
# CMake requires these on Windows and on macOS; no step of the build runs them.
set(CMAKE_RC_COMPILER "${BNGRAD_ZIG}")
set(CMAKE_INSTALL_NAME_TOOL "${BNGRAD_ZIG}")
set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)

# zig adds debug information by default. Libraries are stripped by the linker: strip programs know one format each.
set(CMAKE_C_FLAGS_INIT -g0)
set(CMAKE_CXX_FLAGS_INIT -g0)
set(CMAKE_SHARED_LINKER_FLAGS_INIT -s)

if(CMAKE_SYSTEM_NAME STREQUAL "Darwin")
  # On macOS, zig's linker ignores export lists and exports libc++'s weak operator new and delete, which other
  # libraries of the process could then bind to. Hidden copies of the same functions take their place.
  cmake_path(GET BNGRAD_ZIG PARENT_PATH zig_lib)
  string(APPEND zig_lib /lib)
  string(APPEND CMAKE_SHARED_LINKER_FLAGS_INIT
         " -Wl,-x ${zig_lib}/libcxxabi/src/stdlib_new_delete.cpp"
         " -fvisibility=hidden -fvisibility-global-new-delete=force-hidden"
         " -I${zig_lib}/libcxx/src -I${zig_lib}/libcxxabi/include")
endif()
