# CUDA kernels: HOTSWAP_HAS_CUDA and hotswap_cuda_object(). nvcc is called as a plain command: the project stays C++ where
# there is none, and CMake's CUDA language would bring its own opinions of architectures, flags and the runtime.
set(HOTSWAP_CUDA_ARCHS "90a" CACHE STRING "GPU architectures of CUDA kernels, e.g. 75;80;90a, or all")
set(HOTSWAP_HAS_CUDA OFF)
if(HOTSWAP_CUDA STREQUAL "OFF")
  return()
endif()
find_program(HOTSWAP_NVCC nvcc HINTS /usr/local/cuda/bin)
set(torch_cuda "${HOTSWAP_TORCH_DIR}/lib/libtorch_cuda.so")
if(NOT HOTSWAP_NVCC OR NOT EXISTS "${torch_cuda}")
  if(HOTSWAP_CUDA STREQUAL "ON")
    message(FATAL_ERROR "expected nvcc and a torch with libtorch_cuda.so for HOTSWAP_CUDA=ON; got nvcc ${HOTSWAP_NVCC} and "
                        "torch in ${HOTSWAP_TORCH_DIR}; install both or leave CUDA off")
  endif()
  message(STATUS "CUDA kernels: off (nvcc ${HOTSWAP_NVCC}, torch in ${HOTSWAP_TORCH_DIR})")
  return()
endif()
set(HOTSWAP_HAS_CUDA ON)
execute_process(COMMAND "${HOTSWAP_NVCC}" --version OUTPUT_VARIABLE version)
string(REGEX MATCH "release ([0-9]+)\\.([0-9]+)" version "${version}")
set(HOTSWAP_CUDA_VARIANT "torch-stable-abi210-cu${CMAKE_MATCH_1}${CMAKE_MATCH_2}-${HOTSWAP_KERNEL_CPU}-linux")
get_filename_component(cuda_root "${HOTSWAP_NVCC}" REALPATH)
get_filename_component(cuda_root "${cuda_root}/../.." ABSOLUTE)
find_library(HOTSWAP_CUDART cudart PATHS "${cuda_root}/lib64" "${cuda_root}/targets/x86_64-linux/lib" NO_DEFAULT_PATH REQUIRED)
message(STATUS "CUDA kernels: ${HOTSWAP_NVCC}, ${HOTSWAP_CUDA_VARIANT}, architectures ${HOTSWAP_CUDA_ARCHS}")

set(archs ${HOTSWAP_CUDA_ARCHS})
if(archs STREQUAL "all")
  set(archs 75 80 86 89 90a 100 120)
endif()
set(HOTSWAP_NVCC_FLAGS -std=c++20 -O3 -ccbin "${CMAKE_CXX_COMPILER}" -Xcompiler -fPIC,-fvisibility=hidden -Xptxas -v)
foreach(arch ${archs})
  list(APPEND HOTSWAP_NVCC_FLAGS "-gencode=arch=compute_${arch},code=sm_${arch}")
endforeach()

add_library(torch::cudart INTERFACE IMPORTED GLOBAL)  # the runtime's headers and library, for programs
target_include_directories(torch::cudart SYSTEM INTERFACE "${cuda_root}/include")
target_link_libraries(torch::cudart INTERFACE "${HOTSWAP_CUDART}")

add_library(torch::stable_cuda INTERFACE IMPORTED GLOBAL)
target_include_directories(torch::stable_cuda SYSTEM INTERFACE "${cuda_root}/include")
target_link_libraries(torch::stable_cuda INTERFACE torch::stable)
target_link_options(torch::stable_cuda INTERFACE -Wl,--no-as-needed "${torch_cuda}" "${HOTSWAP_CUDART}")

# One object of SOURCE; what ptxas says of registers and spills goes to OUTPUT.log.
function(hotswap_cuda_object source output)
  add_custom_command(
    OUTPUT "${output}"
    COMMAND sh -c "exec \"$@\" >'${output}.log' 2>&1 || { cat '${output}.log'; exit 1; }" nvcc
            "${HOTSWAP_NVCC}" ${HOTSWAP_NVCC_FLAGS} -DCUDA_KERNEL -DHOTSWAP_ISA=base "-I${CMAKE_SOURCE_DIR}"
            -MD -MF "${output}.d" -c "${source}" -o "${output}"
    DEPENDS "${source}" DEPFILE "${output}.d" VERBATIM COMMENT "nvcc ${source}")
endfunction()
