# torch as Python has it, as imported targets of our own. find_package(Torch) would need a CUDA toolkit of the right
# version wherever the wheel is a CUDA one; these need only the files.
#   torch::torch   the host: libtorch_cpu and c10; libtorch_cuda is loaded at run time where there is one
#   torch::stable  kernel packages: stable-ABI headers only, target torch 2.10
# HOTSWAP_TORCH_LATER: pip is still installing torch, and only the target hotswap_without_torch can be built.
option(HOTSWAP_TORCH_LATER "Configure without torch, for what is compiled before it is installed" OFF)
if(HOTSWAP_TORCH_LATER)
  add_library(torch::torch INTERFACE IMPORTED GLOBAL)
  add_library(torch::stable INTERFACE IMPORTED GLOBAL)
  return()
endif()
# HOTSWAP_TORCH_DIR, the folder of the torch package, may be given; else HOTSWAP_PYTHON is asked, without importing torch.
if(NOT HOTSWAP_TORCH_DIR)
  execute_process(
    COMMAND "${HOTSWAP_PYTHON}" -c "import importlib.util as u; print(u.find_spec('torch').submodule_search_locations[0], end='')"
    OUTPUT_VARIABLE HOTSWAP_TORCH_DIR RESULT_VARIABLE failed ERROR_VARIABLE why)
  if(failed)
    message(FATAL_ERROR "expected a Python with torch >= 2.10; got ${HOTSWAP_PYTHON}: ${why}\n"
                        "run ./x build, which makes .venv; set HOTSWAP_PYTHON to a Python that has torch; or, under pip "
                        "with --no-build-isolation, install torch first")
  endif()
endif()
if(NOT EXISTS "${HOTSWAP_TORCH_DIR}/version.py")
  message(FATAL_ERROR "expected the folder of the torch package in HOTSWAP_TORCH_DIR; got ${HOTSWAP_TORCH_DIR}, which has no version.py")
endif()
file(STRINGS "${HOTSWAP_TORCH_DIR}/version.py" HOTSWAP_TORCH_VERSION REGEX "^__version__")
string(REGEX MATCH "[0-9]+\\.[0-9]+(\\.[0-9]+)?" HOTSWAP_TORCH_VERSION "${HOTSWAP_TORCH_VERSION}")
if(HOTSWAP_TORCH_VERSION VERSION_LESS 2.10)
  message(FATAL_ERROR "expected torch >= 2.10; got torch ${HOTSWAP_TORCH_VERSION} in ${HOTSWAP_TORCH_DIR}; install a newer one")
endif()
message(STATUS "torch ${HOTSWAP_TORCH_VERSION} in ${HOTSWAP_TORCH_DIR}")

foreach(lib c10 torch_cpu)
  add_library(torch::${lib} SHARED IMPORTED GLOBAL)
  set_target_properties(torch::${lib} PROPERTIES IMPORTED_LOCATION "${HOTSWAP_TORCH_DIR}/lib/lib${lib}.so" IMPORTED_NO_SONAME OFF)
endforeach()

add_library(torch::torch INTERFACE IMPORTED GLOBAL)
target_include_directories(torch::torch SYSTEM INTERFACE "${HOTSWAP_TORCH_DIR}/include" "${HOTSWAP_TORCH_DIR}/include/torch/csrc/api/include")
target_link_libraries(torch::torch INTERFACE torch::torch_cpu torch::c10)
# disable-new-dtags: a CUDA package loaded later finds libtorch_cuda through this program's DT_RPATH
target_link_options(torch::torch INTERFACE -Wl,--allow-shlib-undefined -Wl,--disable-new-dtags)

add_library(torch::stable INTERFACE IMPORTED GLOBAL)
target_include_directories(torch::stable SYSTEM INTERFACE "${HOTSWAP_TORCH_DIR}/include")
target_compile_definitions(torch::stable INTERFACE TORCH_TARGET_VERSION=0x020a000000000000)
# libtorch_cpu must be NEEDED or Python cannot load the file
target_link_options(torch::stable INTERFACE -Wl,--no-as-needed "${HOTSWAP_TORCH_DIR}/lib/libtorch_cpu.so" -Wl,--allow-shlib-undefined)

# The CUDA runtime's headers of the same version as torch's, which come beside a torch for CUDA; empty: torch is one without.
file(GLOB HOTSWAP_CUDA_HEADERS "${HOTSWAP_TORCH_DIR}/../nvidia/cu*/include/cuda_runtime_api.h"
     "${HOTSWAP_TORCH_DIR}/../nvidia/cuda_runtime/include/cuda_runtime_api.h")
if(HOTSWAP_CUDA_HEADERS AND EXISTS "${HOTSWAP_TORCH_DIR}/lib/libtorch_cuda.so")
  list(GET HOTSWAP_CUDA_HEADERS 0 HOTSWAP_CUDA_HEADERS)
  cmake_path(GET HOTSWAP_CUDA_HEADERS PARENT_PATH HOTSWAP_CUDA_HEADERS)
else()
  set(HOTSWAP_CUDA_HEADERS "")
endif()
