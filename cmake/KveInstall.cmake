# What is installed: headers, both libraries, pkg-config file, CMake package,
# man pages. (The command installs itself.)

include(CMakePackageConfigHelpers)

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/kvevents"
    DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}"
    FILES_MATCHING PATTERN "*.h"
    PATTERN "service.h" EXCLUDE
    PATTERN "discover.h" EXCLUDE)

install(TARGETS kvevents_shared EXPORT kvevents_shared_targets
    LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
install(TARGETS kvevents_static EXPORT kvevents_static_targets
    ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")

set(kinds shared static)
if(KVEVENTS_SERVICE)
    list(APPEND kinds service)
    install(FILES "${PROJECT_SOURCE_DIR}/include/kvevents/service.h"
        "${PROJECT_SOURCE_DIR}/include/kvevents/discover.h"
        DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/kvevents")
    install(TARGETS kvevents_service EXPORT kvevents_service_targets
        ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}")
    set_target_properties(kvevents_service PROPERTIES EXPORT_NAME service)
endif()

# An export set each: who links the shared library needs no ZeroMQ headers, and
# who does not run the service no HTTP server's.
set(package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/kvevents")
foreach(kind IN LISTS kinds)
    install(EXPORT kvevents_${kind}_targets
        NAMESPACE kvevents::
        FILE kvevents-${kind}-targets.cmake
        DESTINATION "${package_dir}")
endforeach()

configure_package_config_file(
    "${PROJECT_SOURCE_DIR}/cmake/kvevents-config.cmake.in"
    "${PROJECT_BINARY_DIR}/kvevents-config.cmake"
    INSTALL_DESTINATION "${package_dir}"
    NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(
    "${PROJECT_BINARY_DIR}/kvevents-config-version.cmake"
    COMPATIBILITY SameMinorVersion)
install(FILES
    "${PROJECT_BINARY_DIR}/kvevents-config.cmake"
    "${PROJECT_BINARY_DIR}/kvevents-config-version.cmake"
    DESTINATION "${package_dir}")

# The paths in the .pc file follow the prefix when that is where they lie.
foreach(dir IN ITEMS LIBDIR INCLUDEDIR)
    if(IS_ABSOLUTE "${CMAKE_INSTALL_${dir}}")
        set(KVE_PC_${dir} "${CMAKE_INSTALL_${dir}}")
    else()
        set(KVE_PC_${dir} "\${prefix}/${CMAKE_INSTALL_${dir}}")
    endif()
endforeach()
configure_file("${PROJECT_SOURCE_DIR}/cmake/libkvevents.pc.in"
    "${PROJECT_BINARY_DIR}/libkvevents.pc" @ONLY)
install(FILES "${PROJECT_BINARY_DIR}/libkvevents.pc"
    DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")

if(KVEVENTS_SERVICE)
    install(FILES "${PROJECT_SOURCE_DIR}/docs/openapi.json"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/kvevents")
    install(DIRECTORY "${PROJECT_SOURCE_DIR}/contrib/grafana"
        "${PROJECT_SOURCE_DIR}/contrib/prometheus"
        DESTINATION "${CMAKE_INSTALL_DATADIR}/kvevents")
    install(FILES "${PROJECT_SOURCE_DIR}/contrib/systemd/kvevents.service"
        DESTINATION "lib/systemd/system")
    configure_file("${PROJECT_SOURCE_DIR}/cmake/libkvevents-service.pc.in"
        "${PROJECT_BINARY_DIR}/libkvevents-service.pc" @ONLY)
    install(FILES "${PROJECT_BINARY_DIR}/libkvevents-service.pc"
        DESTINATION "${CMAKE_INSTALL_LIBDIR}/pkgconfig")
endif()

foreach(section IN ITEMS 1 3)
    file(GLOB pages CONFIGURE_DEPENDS
        "${PROJECT_SOURCE_DIR}/docs/man/*.${section}")
    if(pages)
        install(FILES ${pages}
            DESTINATION "${CMAKE_INSTALL_MANDIR}/man${section}")
    endif()
endforeach()
