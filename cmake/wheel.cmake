# The wheel (python/pyproject.toml): the kernel packages into hotswap/packages of the Python package.
set(HOTSWAP_HOST OFF)
set(packages "${HOTSWAP_BUILT_PACKAGES}")
if(NOT packages)
  set(packages "${CMAKE_BINARY_DIR}/packages")
endif()
install(DIRECTORY "${packages}/" DESTINATION hotswap/packages COMPONENT python
        PATTERN "__pycache__" EXCLUDE PATTERN ".staging-*" EXCLUDE PATTERN ".old-*" EXCLUDE)
if(NOT DEFINED HOTSWAP_PYTHON)
  find_package(Python3 REQUIRED COMPONENTS Interpreter)
  set(HOTSWAP_PYTHON "${Python3_EXECUTABLE}")
endif()
