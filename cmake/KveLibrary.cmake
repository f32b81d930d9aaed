# libkvevents, shared and static, from one set of objects; and, on top of the
# static one, libkvevents-service: what needs an HTTP server and JSON, so that
# programs that only link the index need neither.

file(GLOB_RECURSE KVE_SOURCES CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/src/*.c")
set(KVE_SERVICE_SOURCES ${KVE_SOURCES})
list(FILTER KVE_SERVICE_SOURCES INCLUDE REGEX "/src/(discover|http)/")
list(FILTER KVE_SOURCES EXCLUDE REGEX "/src/(discover|http)/")

add_library(kvevents_objs OBJECT ${KVE_SOURCES})
set_target_properties(kvevents_objs PROPERTIES
    POSITION_INDEPENDENT_CODE ON
    C_VISIBILITY_PRESET hidden)
target_compile_definitions(kvevents_objs PRIVATE KVE_BUILDING=1)
target_include_directories(kvevents_objs PRIVATE
    "${PROJECT_SOURCE_DIR}/include" "${PROJECT_SOURCE_DIR}/src"
    ${KVE_XXHASH_INCLUDE_DIRS})
target_link_libraries(kvevents_objs PRIVATE
    kve_compile PkgConfig::KVE_ZMQ PkgConfig::KVE_CRYPTO Threads::Threads)

add_library(kvevents_shared SHARED $<TARGET_OBJECTS:kvevents_objs>)
add_library(kvevents_static STATIC $<TARGET_OBJECTS:kvevents_objs>)
add_library(kvevents::kvevents ALIAS kvevents_shared)
add_library(kvevents::static ALIAS kvevents_static)

# 0.x makes no promise, so its soname is 0; from 1.0 on it is the major number.
set_target_properties(kvevents_shared PROPERTIES
    OUTPUT_NAME kvevents
    EXPORT_NAME kvevents
    VERSION ${PROJECT_VERSION}
    SOVERSION ${PROJECT_VERSION_MAJOR})
set_target_properties(kvevents_static PROPERTIES
    OUTPUT_NAME kvevents
    EXPORT_NAME static)

foreach(target IN ITEMS kvevents_shared kvevents_static)
    target_include_directories(${target} PUBLIC
        $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
        $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
    target_link_libraries(${target} PRIVATE
        PkgConfig::KVE_ZMQ PkgConfig::KVE_CRYPTO Threads::Threads
        $<BUILD_INTERFACE:kve_compile>)
endforeach()

# A symbol that is used and not linked is found here, not by our users. The
# sanitizers' run-time library is in the executable, so not with them.
if(NOT KVEVENTS_SANITIZE AND NOT KVEVENTS_FUZZ)
    target_link_options(kvevents_shared PRIVATE -Wl,--no-undefined)
endif()

# The document of the HTTP interface is part of the service, which answers with
# it.
set(KVE_OPENAPI "${PROJECT_SOURCE_DIR}/docs/openapi.json")
file(GLOB v1 CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/src/http/v1*.c")
set_property(SOURCE ${v1} APPEND PROPERTY OBJECT_DEPENDS "${KVE_OPENAPI}")

if(KVEVENTS_SERVICE)
    add_library(kvevents_service STATIC ${KVE_SERVICE_SOURCES})
    set_target_properties(kvevents_service PROPERTIES
        OUTPUT_NAME kvevents-service
        POSITION_INDEPENDENT_CODE ON
        C_VISIBILITY_PRESET hidden)
    target_compile_definitions(kvevents_service PRIVATE
        KVE_BUILDING=1 KVE_OPENAPI="${KVE_OPENAPI}")
    target_include_directories(kvevents_service PRIVATE
        "${PROJECT_SOURCE_DIR}/src" ${KVE_XXHASH_INCLUDE_DIRS})
    target_link_libraries(kvevents_service
        PUBLIC kvevents_static
        PRIVATE $<BUILD_INTERFACE:kve_compile> PkgConfig::KVE_MICROHTTPD
            PkgConfig::KVE_GNUTLS PkgConfig::KVE_JANSSON)
endif()
