// One loop, several instruction sets: the compiler makes a version of the function per level of x86-64 and
// the loader picks the one that the machine has. Contraction to fused multiply-add is off in this project
// and the order of every reduction is written out, so all versions give the same bits.
#pragma once

// Sanitizers instrument the loader's resolvers, which run before their run-time library is ready.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define ANNULUS_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define ANNULUS_MULTIVERSION
#endif
