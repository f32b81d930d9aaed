# bench/bench_NAME.c is one program; the other .c files of bench/ are shared by
# all of them. Measured is the static library, as it is shipped.

file(GLOB programs CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/bench_*.c")
file(GLOB shared CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/bench/*.c")
list(REMOVE_ITEM shared ${programs})

foreach(source IN LISTS programs)
    cmake_path(GET source STEM name)
    set(service "")
    if(name STREQUAL "bench_input") # a part of the service
        if(NOT KVEVENTS_SERVICE)
            continue()
        endif()
        set(service kvevents_service)
    endif()
    add_executable(${name} "${source}" ${shared})
    set_target_properties(${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bench")
    target_include_directories(${name} PRIVATE
        "${PROJECT_SOURCE_DIR}/bench" "${PROJECT_SOURCE_DIR}/src")
    target_link_libraries(${name} PRIVATE kve_compile ${service}
        kvevents_static
        PkgConfig::KVE_ZMQ PkgConfig::KVE_JANSSON Threads::Threads m)
endforeach()
