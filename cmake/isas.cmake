# HOTSWAP_ISAS: the instruction sets that the CPU's kernels are compiled for (kernels/common/cpu/isa.h). All, unless
# HOTSWAP_ONLY_ISA names one, which takes a third of the time; packages so built run on no lesser CPU, and say so.
set(HOTSWAP_ONLY_ISA "" CACHE STRING "Compile the CPU's kernels only for base, v3 or v4, or for native, this CPU's; empty: for all")
set(HOTSWAP_ISA_DEFINITIONS "")
if(NOT CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
  set(HOTSWAP_KERNEL_CPU aarch64)
  set(HOTSWAP_ISAS base)
  set(HOTSWAP_ONLY_ISA "")
  return()
endif()
set(HOTSWAP_KERNEL_CPU x86_64)
set(HOTSWAP_ISAS base v3 v4)
if(HOTSWAP_ONLY_ISA STREQUAL "native")
  # By the code that chooses at run time.
  try_run(ran compiled "${CMAKE_BINARY_DIR}/native_isa"
          SOURCES "${CMAKE_CURRENT_LIST_DIR}/native_isa.cpp" "${CMAKE_SOURCE_DIR}/kernels/common/cpu/isa.cpp"
          COMPILE_DEFINITIONS -DHOTSWAP_ISA=base "-I${CMAKE_SOURCE_DIR}" CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON
          COMPILE_OUTPUT_VARIABLE why RUN_OUTPUT_VARIABLE native_isa)
  if(NOT compiled OR NOT ran EQUAL 0)
    message(FATAL_ERROR "expected cmake/native_isa.cpp to print this CPU's ISA; got ${why} ${native_isa}; "
                        "set HOTSWAP_ONLY_ISA to base, v3 or v4, or to nothing")
  endif()
  set(HOTSWAP_ONLY_ISA "${native_isa}")
endif()
if(HOTSWAP_ONLY_ISA)
  if(NOT HOTSWAP_ONLY_ISA IN_LIST HOTSWAP_ISAS)
    message(FATAL_ERROR "expected HOTSWAP_ONLY_ISA to be base, v3, v4, native or empty; got ${HOTSWAP_ONLY_ISA}; set one of these")
  endif()
  set(HOTSWAP_ISAS ${HOTSWAP_ONLY_ISA})
  set(HOTSWAP_ISA_DEFINITIONS HOTSWAP_ONLY_ISA=${HOTSWAP_ONLY_ISA})
endif()
