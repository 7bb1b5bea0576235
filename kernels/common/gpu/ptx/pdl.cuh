// Programmatic dependent launch (griddepcontrol, sm_90): a launch that depends on the previous one (launch.cuh) may be
// set up while the previous one's last blocks run. Nothing that another launch may write is read before the wait,
// weights neither.
#pragma once

namespace kernels::gpu {

__device__ __forceinline__ void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  cudaTriggerProgrammaticLaunchCompletion();
#endif
}
__device__ __forceinline__ void grid_dependency_wait() {  // and for its writes
#if __CUDA_ARCH__ >= 900
  cudaGridDependencySynchronize();
#endif
}

}  // namespace kernels::gpu
