# hotswap_kernel(NAME): kernels/NAME becomes build/packages/NAME/build/<variant>/, the layout of kernel-builder.
#   NAME_cpu.cpp            compiled once per ISA (HOTSWAP_ISA = base, v3, v4), chosen at run time
#   torch-ext/*.cpp         the op library's face, torch stable ABI only
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
  list(FILTER inputs EXCLUDE REGEX "__pycache__|_test\\.cpp$|_bench\\.cpp$|/tests/")
  set(tool "${CMAKE_SOURCE_DIR}/cmake/package.py")
  add_custom_command(
    OUTPUT "${generated}/id.h"
    COMMAND "${HOTSWAP_PYTHON}" "${tool}" id --source "${dir}" --common "${common}" --backend cpu --out "${generated}/id.h"
    DEPENDS ${inputs} "${tool}" VERBATIM)
  add_custom_target(${name}_id DEPENDS "${generated}/id.h")

  set(objects "")
  foreach(isa ${HOTSWAP_ISAS})
    add_library(${name}_cpu_${isa} OBJECT "${dir}/${name}_cpu.cpp")
    target_compile_definitions(${name}_cpu_${isa} PRIVATE HOTSWAP_ISA=${isa})
    target_compile_options(${name}_cpu_${isa} PRIVATE ${HOTSWAP_KERNEL_FLAGS} ${HOTSWAP_ISA_FLAGS_${isa}})
    target_include_directories(${name}_cpu_${isa} PRIVATE "${CMAKE_SOURCE_DIR}")
    list(APPEND objects $<TARGET_OBJECTS:${name}_cpu_${isa}>)
  endforeach()

  file(GLOB bindings CONFIGURE_DEPENDS "${dir}/torch-ext/*.cpp")
  file(GLOB common_sources CONFIGURE_DEPENDS "${common}/*.cpp")
  list(FILTER common_sources EXCLUDE REGEX "_test\\.cpp$")
  add_library(${name}_cpu MODULE ${bindings} ${common_sources} ${objects})
  add_dependencies(${name}_cpu ${name}_id)
  target_compile_definitions(${name}_cpu PRIVATE CPU_KERNEL HOTSWAP_ISA=base)
  target_compile_options(${name}_cpu PRIVATE ${HOTSWAP_KERNEL_FLAGS} -include "${generated}/id.h")
  target_include_directories(${name}_cpu PRIVATE "${CMAKE_SOURCE_DIR}")
  target_link_libraries(${name}_cpu PRIVATE torch::stable)

  # Staged into a temporary folder and renamed: a half-made package is never seen.
  set(package "${CMAKE_BINARY_DIR}/packages/${name}")
  set(stamp "${generated}/staged")
  add_custom_command(
    OUTPUT "${stamp}"
    COMMAND "${HOTSWAP_PYTHON}" "${tool}" stage --source "${dir}" --id "${generated}/id.h" --library $<TARGET_FILE:${name}_cpu>
            --backend cpu --out "${package}/build/${HOTSWAP_CPU_VARIANT}"
    COMMAND "${CMAKE_COMMAND}" -E touch "${stamp}"
    DEPENDS ${name}_cpu "${generated}/id.h" ${inputs} "${tool}" VERBATIM)
  add_custom_target(${name}_package ALL DEPENDS "${stamp}")
  set_property(GLOBAL APPEND PROPERTY HOTSWAP_PACKAGES ${name}_package)

  # Tests and benchmarks use the package through torch's dispatcher, as a host does; torch is their float64 reference.
  foreach(kind test bench)
    if(EXISTS "${dir}/${name}_${kind}.cpp")
      add_executable(${name}_${kind} "${dir}/${name}_${kind}.cpp")
      add_dependencies(${name}_${kind} ${name}_package)
      target_include_directories(${name}_${kind} PRIVATE "${CMAKE_SOURCE_DIR}")
      target_compile_definitions(${name}_${kind} PRIVATE HOTSWAP_PACKAGE_DIR="${package}/build/${HOTSWAP_CPU_VARIANT}"
                                 HOTSWAP_PACKAGES_DIR="${CMAKE_BINARY_DIR}/packages")
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
