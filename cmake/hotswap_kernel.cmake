# hotswap_kernel(NAME): kernels/NAME becomes build/packages/NAME/build/<variant>/, the layout of kernel-builder.
#   cpu/*.cpp               compiled once per ISA (HOTSWAP_ISA = base, v3, v4), chosen at run time
#   cuda/*.cu               with CUDA on: a second variant, the CPU's kernels and these in one library
#   torch-ext/*.cpp         op registration, torch stable ABI only
#   tests/*_test.cpp        bin/NAME_test; bench/NAME_bench.cpp, bench/NAME_cuda_bench.cpp: bin/NAME_bench, bin/NAME_cuda_bench;
#                           all load the built package as any host does
#   tests/*_emulated.cpp    bin/*_emulated_test, a program each: .cu files of the package, run on the CPU
# tests/package_layout_test.py holds every package to this layout.
include(cmake/isas.cmake)
set(HOTSWAP_ISA_FLAGS_base "")
set(HOTSWAP_ISA_FLAGS_v3 -march=x86-64-v3)
set(HOTSWAP_ISA_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512)
set(HOTSWAP_CPU_VARIANT "torch-stable-abi210-cpu-${HOTSWAP_KERNEL_CPU}-linux")
# -Wno-maybe-uninitialized: g++ 12's own AVX-512 headers start results from undefined vectors on purpose.
set(HOTSWAP_KERNEL_FLAGS -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math -fvisibility=hidden -fvisibility-inlines-hidden
    -Wno-maybe-uninitialized -Wno-uninitialized -Wno-psabi)

add_custom_target(benchmarks)  # `ninja benchmarks`: tests do not wait for them

# GPU kernels on the CPU: a test that includes .cu files as C++, with stand-ins for CUDA's headers. GCC only, for
# thread_local arrays that are declared where they are used; AddressSanitizer does not follow fibers.
function(hotswap_emulated_test name source)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL "GNU" OR HOTSWAP_SANITIZE)
    return()
  endif()
  set(emulated "${CMAKE_SOURCE_DIR}/kernels/common/testing/emulated")
  add_executable(${name}_test "${source}")
  target_include_directories(${name}_test BEFORE PRIVATE "${emulated}" "${CMAKE_SOURCE_DIR}")
  target_compile_definitions(${name}_test PRIVATE HOTSWAP_ISA=base)
  target_compile_options(${name}_test PRIVATE -O1 -fno-extern-tls-init -Wno-unknown-pragmas -include "${emulated}/block.h")
  target_link_libraries(${name}_test PRIVATE GTest::gtest GTest::gtest_main Threads::Threads)
  add_test(NAME kernel_${name} COMMAND ${name}_test)
endfunction()

# What every package links, compiled once, and has in its Python API.
file(GLOB HOTSWAP_KERNELS_COMMON CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/kernels/common/cpu/*.cpp"
     "${CMAKE_SOURCE_DIR}/kernels/common/torch/*.cpp")
file(GLOB HOTSWAP_PYTHON_COMMON CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/kernels/common/python/*.py")
set(HOTSWAP_KERNEL_EXPORTS "${CMAKE_SOURCE_DIR}/kernels/common/torch/exports.map")
add_library(kernels_common OBJECT ${HOTSWAP_KERNELS_COMMON})
target_compile_definitions(kernels_common PRIVATE HOTSWAP_ISA=base ${HOTSWAP_ISA_DEFINITIONS})
target_compile_options(kernels_common PRIVATE ${HOTSWAP_KERNEL_FLAGS})
target_include_directories(kernels_common PRIVATE "${CMAKE_SOURCE_DIR}")

# What several packages need once per ISA. Archives, of which a package links what it calls.
file(GLOB HOTSWAP_KERNELS_PER_ISA CONFIGURE_DEPENDS "${CMAKE_SOURCE_DIR}/kernels/common/cpu/per_isa/*.cpp")
foreach(isa ${HOTSWAP_ISAS})
  add_library(kernels_common_${isa} STATIC ${HOTSWAP_KERNELS_PER_ISA})
  target_compile_definitions(kernels_common_${isa} PRIVATE HOTSWAP_ISA=${isa})
  target_compile_options(kernels_common_${isa} PRIVATE ${HOTSWAP_KERNEL_FLAGS} ${HOTSWAP_ISA_FLAGS_${isa}})
  target_include_directories(kernels_common_${isa} PRIVATE "${CMAKE_SOURCE_DIR}")
endforeach()

function(hotswap_kernel name)
  set(dir "${CMAKE_CURRENT_SOURCE_DIR}/${name}")
  set(tool "${CMAKE_SOURCE_DIR}/cmake/package.py")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  file(GLOB cpu_sources CONFIGURE_DEPENDS "${dir}/cpu/*.cpp")
  if(NOT cpu_sources)
    message(FATAL_ERROR "kernels/${name}: expected a file cpu/*.cpp; got none; every package serves the CPU, too")
  endif()
  file(GLOB bindings CONFIGURE_DEPENDS "${dir}/torch-ext/*.cpp")
  file(GLOB_RECURSE face CONFIGURE_DEPENDS "${dir}/torch-ext/*.py")
  list(APPEND face ${HOTSWAP_PYTHON_COMMON} "${dir}/build.toml")
  set(objects $<TARGET_OBJECTS:kernels_common>)
  foreach(isa ${HOTSWAP_ISAS})
    add_library(${name}_cpu_${isa} OBJECT ${cpu_sources})
    target_compile_definitions(${name}_cpu_${isa} PRIVATE HOTSWAP_ISA=${isa})
    target_compile_options(${name}_cpu_${isa} PRIVATE ${HOTSWAP_KERNEL_FLAGS} ${HOTSWAP_ISA_FLAGS_${isa}})
    target_include_directories(${name}_cpu_${isa} PRIVATE "${CMAKE_SOURCE_DIR}")
    list(APPEND objects $<TARGET_OBJECTS:${name}_cpu_${isa}>)
  endforeach()

  set(backends cpu)
  set(cuda_sources "")
  set(cuda_objects "")
  if(HOTSWAP_HAS_CUDA)
    file(GLOB cuda_sources CONFIGURE_DEPENDS "${dir}/cuda/*.cu")
  endif()
  if(cuda_sources)
    list(APPEND backends cuda)
    foreach(source ${cuda_sources})
      file(RELATIVE_PATH object "${dir}" "${source}")
      list(APPEND cuda_objects "${generated}/${object}.o")
      hotswap_cuda_object("${source}" "${generated}/${object}.o")
    endforeach()
    set_source_files_properties(${cuda_objects} PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
  endif()
  set(package "${CMAKE_BINARY_DIR}/packages/${name}")
  set(stamps "")
  foreach(backend ${backends})
    # The id names ops and file: it is a hash of all that is compiled or staged.
    file(GLOB layers CONFIGURE_DEPENDS "${dir}/layers.${backend}.json")  # where a backend has not what the others have
    if(NOT layers)
      set(layers "${dir}/layers.json")
    endif()
    set(built ${cpu_sources} ${bindings} ${HOTSWAP_KERNELS_COMMON} ${HOTSWAP_KERNELS_PER_ISA}
        ${HOTSWAP_KERNEL_EXPORTS} ${face} ${layers})
    if(backend STREQUAL "cuda")
      list(APPEND built ${cuda_sources})
    endif()
    set(id "${generated}/${backend}/id.h")
    add_custom_command(
      OUTPUT "${id}"
      COMMAND "${HOTSWAP_PYTHON}" "${tool}" id --source "${dir}" --backend ${backend} --root "${CMAKE_SOURCE_DIR}" --out "${id}"
              "--only-isa=${HOTSWAP_ONLY_ISA}" ${built}
      DEPENDS ${built} "${tool}" DEPFILE "${id}.d" VERBATIM)
    add_custom_target(${name}_${backend}_id DEPENDS "${id}")
    add_library(${name}_${backend} MODULE ${bindings} ${objects})
    add_dependencies(${name}_${backend} ${name}_${backend}_id)
    target_compile_definitions(${name}_${backend} PRIVATE CPU_KERNEL HOTSWAP_ISA=base ${HOTSWAP_ISA_DEFINITIONS})
    target_compile_options(${name}_${backend} PRIVATE ${HOTSWAP_KERNEL_FLAGS} -include "${id}")
    target_include_directories(${name}_${backend} PRIVATE "${CMAKE_SOURCE_DIR}")
    foreach(isa ${HOTSWAP_ISAS})
      target_link_libraries(${name}_${backend} PRIVATE kernels_common_${isa})
    endforeach()
    target_link_options(${name}_${backend} PRIVATE "SHELL:-Xlinker \"--version-script=${HOTSWAP_KERNEL_EXPORTS}\"")
    set_property(TARGET ${name}_${backend} APPEND PROPERTY LINK_DEPENDS "${HOTSWAP_KERNEL_EXPORTS}")
    if(backend STREQUAL "cuda")
      target_sources(${name}_cuda PRIVATE ${cuda_objects})
      target_compile_definitions(${name}_cuda PRIVATE CUDA_KERNEL USE_CUDA=1)
      target_link_libraries(${name}_cuda PRIVATE torch::stable_cuda)
      set(variant "${package}/build/${HOTSWAP_CUDA_VARIANT}")
    else()
      target_link_libraries(${name}_cpu PRIVATE torch::stable)
      set(variant "${package}/build/${HOTSWAP_CPU_VARIANT}")
    endif()
    # Staged into a temporary folder and renamed: a half-made package is never seen.
    set(stamp "${generated}/${backend}/staged")
    add_custom_command(
      OUTPUT "${stamp}"
      COMMAND "${HOTSWAP_PYTHON}" "${tool}" stage --source "${dir}" --backend ${backend} --layers "${layers}" --id "${id}"
              --library $<TARGET_FILE:${name}_${backend}> --out "${variant}" ${HOTSWAP_PYTHON_COMMON}
      COMMAND "${CMAKE_COMMAND}" -E touch "${stamp}"
      DEPENDS ${name}_${backend} "${id}" ${face} "${layers}" "${tool}" VERBATIM)
    list(APPEND stamps "${stamp}")
  endforeach()
  add_custom_target(${name}_package ALL DEPENDS ${stamps})
  set_property(GLOBAL APPEND PROPERTY HOTSWAP_PACKAGES ${name}_package)

  if(NOT HOTSWAP_HOST)
    return()
  endif()
  # Tests and benchmarks use the package through torch's dispatcher, as a host does; torch is their float64 reference.
  set(kinds test bench)
  if("cuda" IN_LIST backends)
    list(APPEND kinds cuda_bench)
  endif()
  foreach(kind ${kinds})
    if(kind STREQUAL "test")
      file(GLOB sources CONFIGURE_DEPENDS "${dir}/tests/*_test.cpp")
    else()
      file(GLOB sources CONFIGURE_DEPENDS "${dir}/bench/${name}_${kind}.cpp")
    endif()
    if(sources)
      if(NOT name STREQUAL "mamba")  # its tests have two references with the same names
        hotswap_batches(sources ${name}_${kind} ${sources})
      endif()
      add_executable(${name}_${kind} ${sources})
      add_dependencies(${name}_${kind} ${name}_package)
      target_include_directories(${name}_${kind} PRIVATE "${CMAKE_SOURCE_DIR}")
      target_compile_definitions(${name}_${kind} PRIVATE HOTSWAP_PACKAGE_DIR="${name}/build/${HOTSWAP_CPU_VARIANT}"
                                 HOTSWAP_TORCH_VERSION="${HOTSWAP_TORCH_VERSION}")
      if("cuda" IN_LIST backends)
        target_compile_definitions(${name}_${kind} PRIVATE HOTSWAP_CUDA_PACKAGE_DIR="${name}/build/${HOTSWAP_CUDA_VARIANT}")
      endif()
      target_link_libraries(${name}_${kind} PRIVATE torch::torch ${CMAKE_DL_LIBS} Threads::Threads)
    endif()
  endforeach()
  if(TARGET ${name}_test)
    target_link_libraries(${name}_test PRIVATE GTest::gtest GTest::gtest_main)
    target_precompile_headers(${name}_test REUSE_FROM hotswap_pch_torch_test)
    target_compile_options(${name}_test PRIVATE ${HOTSWAP_PCH_OPTIONS} ${HOTSWAP_TEST_OPTIONS})
    add_test(NAME kernel_${name} COMMAND ${name}_test)
    hotswap_test_cost(kernel_${name})
  endif()
  file(GLOB sources CONFIGURE_DEPENDS "${dir}/tests/*_emulated.cpp")
  foreach(source ${sources})
    get_filename_component(emulated "${source}" NAME_WE)
    hotswap_emulated_test(${emulated} "${source}")
  endforeach()
  foreach(bench ${name}_bench ${name}_cuda_bench)
    if(TARGET ${bench})
      set_target_properties(${bench} PROPERTIES EXCLUDE_FROM_ALL ON)
      add_dependencies(benchmarks ${bench})
    endif()
  endforeach()
  if(TARGET ${name}_cuda_bench)
    target_link_libraries(${name}_cuda_bench PRIVATE torch::cudart)
  endif()
endfunction()
