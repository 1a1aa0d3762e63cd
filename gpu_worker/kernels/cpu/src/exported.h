// What the worker calls. Everything else is hidden (`-fvisibility=hidden`): two libraries in one process, for different
// instruction sets, would otherwise share what compilers mark as unique, tables of functions among it.
#pragma once

#define EXPORTED extern "C" __attribute__((visibility("default")))
