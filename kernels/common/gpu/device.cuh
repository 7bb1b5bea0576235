// Device code that every package needs: elements and packs, programmatic dependent launch, sums over the threads of a
// row.
#pragma once

#include "kernels/common/gpu/ptx/pdl.cuh"
#include "kernels/common/gpu/reduce/row_sum.cuh"
#include "kernels/common/gpu/tile/pack.cuh"
