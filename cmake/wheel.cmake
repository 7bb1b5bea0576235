# The wheel (python/wheel_backend.py, which says HOTSWAP_PYTHON): the kernel packages into hotswap/packages of the Python package.
set(HOTSWAP_HOST OFF)
add_link_options(-Wl,--strip-debug)  # two thirds of the files
set(packages "${HOTSWAP_BUILT_PACKAGES}")
if(NOT packages)
  set(packages "${CMAKE_BINARY_DIR}/packages")
endif()
install(DIRECTORY "${packages}/" DESTINATION hotswap/packages COMPONENT python
        PATTERN "__pycache__" EXCLUDE PATTERN ".staging-*" EXCLUDE PATTERN ".old-*" EXCLUDE)
