# examples/NAME.c is one program, on the public API alone.

file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/examples/*.c")

foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_executable(example_${name} "${source}")
    set_target_properties(example_${name} PROPERTIES
        OUTPUT_NAME ${name}
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/examples")
    target_link_libraries(example_${name} PRIVATE
        kve_compile kvevents_shared Threads::Threads)
endforeach()
