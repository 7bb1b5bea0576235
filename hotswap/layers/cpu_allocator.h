// Memory of CPU tensors for a program that trains or generates: freed blocks are kept and fit the next tensor of their
// size, so a step neither faults its pages in again nor grows the heap.
#pragma once

namespace hotswap {

// Replaces torch's CPU allocator and sets malloc's thresholds, for the whole process: a program calls it first thing in
// main. torch asks glibc for aligned blocks, and glibc before 2.38 cannot give a freed block to an aligned request of
// the same size: a training step then leaves holes of hundreds of megabytes.
void use_compact_cpu_allocator();

}  // namespace hotswap
