# hotswap_kernel(NAME): kernels/NAME becomes build/packages/NAME/build/<variant>/, the layout of kernel-builder.
#   NAME_cpu.cpp            compiled once per ISA (HOTSWAP_ISA = base, v3, v4), chosen at run time
#   torch-ext/*.cpp         the op library's face, torch stable ABI only
#   NAME.cu                 with CUDA on: a second variant, the CPU's kernels and these in one library
#   NAME_test.cpp           bin/NAME_test, NAME_bench.cpp bin/NAME_bench: load the built package as any host does
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(HOTSWAP_KERNEL_CPU x86_64)
  set(HOTSWAP_ISAS base v3 v4)
else()
  set(HOTSWAP_KERNEL_CPU aarch64)
  set(HOTSWAP_ISAS base)
endif()
set(HOTSWAP_ISA_FLAGS_base "")
set(HOTSWAP_ISA_FLAGS_v3 -march=x86-64-v3)
set(HOTSWAP_ISA_FLAGS_v4 -march=x86-64-v4 -mprefer-vector-width=512)
set(HOTSWAP_CPU_VARIANT "torch-stable-abi210-cpu-${HOTSWAP_KERNEL_CPU}-linux")
# -Wno-maybe-uninitialized: g++ 12's own AVX-512 headers start results from undefined vectors on purpose.
set(HOTSWAP_KERNEL_FLAGS -O3 -fopenmp-simd -fno-math-errno -fno-trapping-math -fvisibility=hidden -fvisibility-inlines-hidden
    -Wno-maybe-uninitialized -Wno-uninitialized -Wno-psabi)

add_custom_target(benchmarks)  # `ninja benchmarks`: tests do not wait for them

function(hotswap_kernel name)
  set(dir "${CMAKE_CURRENT_SOURCE_DIR}/${name}")
  set(common "${CMAKE_CURRENT_SOURCE_DIR}/common")
  set(generated "${CMAKE_CURRENT_BINARY_DIR}/${name}")
  if(NOT EXISTS "${dir}/build.toml")
    return()
  endif()

  # The id names ops and file: it must change whenever anything in the package does, so it is a hash of the sources.
  file(GLOB_RECURSE inputs CONFIGURE_DEPENDS "${dir}/*" "${common}/*")
  list(FILTER inputs EXCLUDE REGEX "__pycache__|_test\\.cpp$|_bench\\.cpp$|/tests/|/testing/")
  set(tool "${CMAKE_SOURCE_DIR}/cmake/package.py")

  set(objects "")
  foreach(isa ${HOTSWAP_ISAS})
    add_library(${name}_cpu_${isa} OBJECT "${dir}/${name}_cpu.cpp")
    target_compile_definitions(${name}_cpu_${isa} PRIVATE HOTSWAP_ISA=${isa})
    target_compile_options(${name}_cpu_${isa} PRIVATE ${HOTSWAP_KERNEL_FLAGS} ${HOTSWAP_ISA_FLAGS_${isa}})
    target_include_directories(${name}_cpu_${isa} PRIVATE "${CMAKE_SOURCE_DIR}")
    list(APPEND objects $<TARGET_OBJECTS:${name}_cpu_${isa}>)
  endforeach()

  file(GLOB bindings CONFIGURE_DEPENDS "${dir}/torch-ext/*.cpp")
  file(GLOB common_sources CONFIGURE_DEPENDS "${common}/cpu/*.cpp" "${common}/torch/*.cpp")
  set(backends cpu)
  if(HOTSWAP_HAS_CUDA AND EXISTS "${dir}/${name}.cu")
    list(APPEND backends cuda)
    hotswap_cuda_object("${dir}/${name}.cu" "${generated}/${name}.cu.o")
  endif()
  set(package "${CMAKE_BINARY_DIR}/packages/${name}")
  set(stamps "")
  foreach(backend ${backends})
    set(id "${generated}/${backend}/id.h")
    add_custom_command(
      OUTPUT "${id}"
      COMMAND "${HOTSWAP_PYTHON}" "${tool}" id --source "${dir}" --common "${common}" --backend ${backend} --out "${id}"
      DEPENDS ${inputs} "${tool}" VERBATIM)
    add_custom_target(${name}_${backend}_id DEPENDS "${id}")
    add_library(${name}_${backend} MODULE ${bindings} ${common_sources} ${objects})
    add_dependencies(${name}_${backend} ${name}_${backend}_id)
    target_compile_definitions(${name}_${backend} PRIVATE CPU_KERNEL HOTSWAP_ISA=base)
    target_compile_options(${name}_${backend} PRIVATE ${HOTSWAP_KERNEL_FLAGS} -include "${id}")
    target_include_directories(${name}_${backend} PRIVATE "${CMAKE_SOURCE_DIR}")
    if(backend STREQUAL cuda)
      target_sources(${name}_cuda PRIVATE "${generated}/${name}.cu.o")
      set_source_files_properties("${generated}/${name}.cu.o" PROPERTIES EXTERNAL_OBJECT ON GENERATED ON)
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
      COMMAND "${HOTSWAP_PYTHON}" "${tool}" stage --source "${dir}" --id "${id}" --library
              $<TARGET_FILE:${name}_${backend}> --backend ${backend} --out "${variant}"
      COMMAND "${CMAKE_COMMAND}" -E touch "${stamp}"
      DEPENDS ${name}_${backend} "${id}" ${inputs} "${tool}" VERBATIM)
    list(APPEND stamps "${stamp}")
  endforeach()
  add_custom_target(${name}_package ALL DEPENDS ${stamps})
  set_property(GLOBAL APPEND PROPERTY HOTSWAP_PACKAGES ${name}_package)

  if(NOT HOTSWAP_HOST)
    return()
  endif()
  # Tests and benchmarks use the package through torch's dispatcher, as a host does; torch is their float64 reference.
  foreach(kind test bench)
    if(EXISTS "${dir}/${name}_${kind}.cpp")
      add_executable(${name}_${kind} "${dir}/${name}_${kind}.cpp")
      add_dependencies(${name}_${kind} ${name}_package)
      target_include_directories(${name}_${kind} PRIVATE "${CMAKE_SOURCE_DIR}")
      target_compile_definitions(${name}_${kind} PRIVATE HOTSWAP_PACKAGE_DIR="${package}/build/${HOTSWAP_CPU_VARIANT}"
                                 HOTSWAP_PACKAGES_DIR="${CMAKE_BINARY_DIR}/packages")
      if("cuda" IN_LIST backends)
        target_compile_definitions(${name}_${kind} PRIVATE HOTSWAP_CUDA_PACKAGE_DIR="${package}/build/${HOTSWAP_CUDA_VARIANT}")
      endif()
      target_link_libraries(${name}_${kind} PRIVATE torch::torch ${CMAKE_DL_LIBS} Threads::Threads)
    endif()
  endforeach()
  if(TARGET ${name}_test)
    target_link_libraries(${name}_test PRIVATE GTest::gtest GTest::gtest_main)
    add_test(NAME kernel_${name} COMMAND ${name}_test)
  endif()
  if(TARGET ${name}_bench)
    target_link_libraries(${name}_bench PRIVATE benchmark::benchmark)
    set_target_properties(${name}_bench PROPERTIES EXCLUDE_FROM_ALL ON)
    add_dependencies(benchmarks ${name}_bench)
  endif()
endfunction()
