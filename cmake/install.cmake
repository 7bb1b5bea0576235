# What `cmake --install` gives: include/hotswap, lib/libhotswap.so, bin/hotswap, share/hotswap/packages, and
# lib/cmake/hotswap for find_package(hotswap). Programs find the packages beside the library: lib/../share/hotswap.
include(CMakePackageConfigHelpers)

# The public headers: which, is found when they are installed.
install(CODE "set(HOTSWAP_SOURCE_DIR [[${CMAKE_SOURCE_DIR}]])
set(HOTSWAP_INCLUDE_DESTINATION \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_INCLUDEDIR}\")")
install(SCRIPT "${CMAKE_SOURCE_DIR}/cmake/public_headers.cmake")
install(DIRECTORY "${CMAKE_BINARY_DIR}/packages/" DESTINATION "${CMAKE_INSTALL_DATADIR}/hotswap/packages"
        PATTERN "__pycache__" EXCLUDE PATTERN ".staging-*" EXCLUDE PATTERN ".old-*" EXCLUDE)

if(TARGET hotswap)
  target_include_directories(hotswap INTERFACE $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  target_compile_features(hotswap INTERFACE cxx_std_20)
  # torch's folder stays in the run path: libtorch is not copied. Named, because CMake's own INSTALL_RPATH_USE_LINK_PATH
  # leaves out folders inside the source tree, and .venv is one.
  set_target_properties(hotswap hotswap_program PROPERTIES
    INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR};$ORIGIN;${HOTSWAP_TORCH_DIR}/lib")
  install(TARGETS hotswap EXPORT hotswapTargets LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  if(TARGET hotswap_cuda)
    install(TARGETS hotswap_cuda LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
  install(TARGETS hotswap_program RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
  set(config "${CMAKE_INSTALL_LIBDIR}/cmake/hotswap")
  install(EXPORT hotswapTargets NAMESPACE hotswap:: DESTINATION "${config}")
  configure_package_config_file("${CMAKE_SOURCE_DIR}/cmake/hotswapConfig.cmake.in" "${CMAKE_BINARY_DIR}/hotswapConfig.cmake"
                                INSTALL_DESTINATION "${config}")
  write_basic_package_version_file("${CMAKE_BINARY_DIR}/hotswapConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
  install(FILES "${CMAKE_BINARY_DIR}/hotswapConfig.cmake" "${CMAKE_BINARY_DIR}/hotswapConfigVersion.cmake"
                "${CMAKE_SOURCE_DIR}/cmake/torch.cmake" DESTINATION "${config}")
endif()
