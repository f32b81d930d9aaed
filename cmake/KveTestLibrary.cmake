# kvevents_test: the same sources with every symbol visible, so that tests
# reach the inside without including .c files.

add_library(kvevents_test STATIC ${KVE_SOURCES} ${KVE_SERVICE_SOURCES})
set_target_properties(kvevents_test PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET default)
target_compile_definitions(kvevents_test PUBLIC KVE_TESTING=1)
target_compile_definitions(kvevents_test PRIVATE
    KVE_BUILDING=1 KVE_OPENAPI="${KVE_OPENAPI}")
target_include_directories(kvevents_test PUBLIC
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
    "${PROJECT_SOURCE_DIR}/tests" ${KVE_XXHASH_INCLUDE_DIRS})
target_link_libraries(kvevents_test PUBLIC
    kve_compile PkgConfig::KVE_ZMQ PkgConfig::KVE_CRYPTO
    PkgConfig::KVE_MICROHTTPD PkgConfig::KVE_GNUTLS PkgConfig::KVE_JANSSON
    Threads::Threads)
