# What can be chosen, and the libraries the choice needs.

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()

find_package(PkgConfig REQUIRED)
set(THREADS_PREFER_PTHREAD_FLAG ON)
find_package(Threads REQUIRED)

# The library itself needs ZeroMQ, libcrypto (SHA-256), and of xxHash only its
# header, which is compiled in: programs that link the library need not know of
# it.
pkg_check_modules(KVE_ZMQ REQUIRED IMPORTED_TARGET libzmq>=4.3)
pkg_check_modules(KVE_CRYPTO REQUIRED IMPORTED_TARGET libcrypto>=3.0)
pkg_check_modules(KVE_XXHASH REQUIRED libxxhash>=0.8)

# Judges of our bytes and of our tests.
pkg_check_modules(KVE_JANSSON QUIET IMPORTED_TARGET jansson>=2.12)
pkg_check_modules(KVE_CMOCKA QUIET IMPORTED_TARGET cmocka)
pkg_search_module(KVE_MSGPACK QUIET IMPORTED_TARGET msgpackc msgpack)

# The service and its clients: HTTP, its TLS, the config file, the client side.
pkg_check_modules(KVE_MICROHTTPD QUIET IMPORTED_TARGET libmicrohttpd>=0.9.71)
pkg_check_modules(KVE_GNUTLS QUIET IMPORTED_TARGET gnutls>=3.7)
pkg_check_modules(KVE_INIH QUIET IMPORTED_TARGET inih)
pkg_check_modules(KVE_CURL QUIET IMPORTED_TARGET libcurl>=7.62)
# Tells systemd that the service is ready and alive.
pkg_check_modules(KVE_SYSTEMD QUIET IMPORTED_TARGET libsystemd)

option(KVEVENTS_WERROR "Warnings are errors" OFF)
option(KVEVENTS_BUILD_TOOLS "Build the kvevents command" ON)
option(KVEVENTS_BUILD_EXAMPLES "Build the examples" ON)
option(KVEVENTS_BUILD_BENCH "Build the benchmarks" ON)
option(KVEVENTS_FUZZ "Build the fuzz targets for libFuzzer (clang)" OFF)

set(KVEVENTS_SANITIZE "" CACHE STRING
    "Sanitizers for everything that is built: address;undefined or thread")

set(KVEVENTS_SERVICE AUTO CACHE STRING
    "Build libkvevents-service and the commands serve, query and sources: ON, \
OFF, or AUTO: when their libraries are there")
set_property(CACHE KVEVENTS_SERVICE PROPERTY STRINGS AUTO ON OFF)

set(missing "")
foreach(library IN ITEMS MICROHTTPD GNUTLS JANSSON INIH CURL)
    if(NOT KVE_${library}_FOUND)
        string(TOLOWER ${library} name)
        list(APPEND missing ${name})
    endif()
endforeach()
list(JOIN missing ", " missing)
if(KVEVENTS_SERVICE STREQUAL "AUTO")
    if(missing)
        message(STATUS "The service is not built: ${missing} not found")
        set(KVEVENTS_SERVICE OFF)
    else()
        set(KVEVENTS_SERVICE ON)
    endif()
elseif(KVEVENTS_SERVICE AND missing)
    message(FATAL_ERROR "KVEVENTS_SERVICE=ON needs ${missing}; "
        "scripts/deps.sh demo installs what is missing on Debian")
endif()

# Tests need two more libraries, and test the service, too; a machine without
# them still builds the rest.
set(KVEVENTS_BUILD_TESTS AUTO CACHE STRING
    "Build the tests: ON, OFF, or AUTO: when their libraries are there")
set_property(CACHE KVEVENTS_BUILD_TESTS PROPERTY STRINGS AUTO ON OFF)

set(missing "")
foreach(library IN ITEMS CMOCKA JANSSON MSGPACK)
    if(NOT KVE_${library}_FOUND)
        string(TOLOWER ${library} name)
        list(APPEND missing ${name})
    endif()
endforeach()
list(JOIN missing ", " missing)
if(NOT KVEVENTS_SERVICE)
    list(APPEND missing "the service")
    list(JOIN missing ", " missing)
endif()
if(KVEVENTS_BUILD_TESTS STREQUAL "AUTO")
    if(missing)
        message(STATUS "Tests are not built: ${missing} not found")
        set(KVEVENTS_BUILD_TESTS OFF)
    else()
        set(KVEVENTS_BUILD_TESTS ON)
    endif()
elseif(KVEVENTS_BUILD_TESTS AND missing)
    message(FATAL_ERROR "KVEVENTS_BUILD_TESTS=ON needs ${missing}; "
        "scripts/deps.sh check installs what is missing on Debian")
endif()

if((KVEVENTS_BUILD_TOOLS OR KVEVENTS_BUILD_BENCH) AND NOT KVE_JANSSON_FOUND)
    message(FATAL_ERROR "The command and the benchmarks need jansson "
        "(Debian: libjansson-dev); or turn them off with "
        "-DKVEVENTS_BUILD_TOOLS=OFF -DKVEVENTS_BUILD_BENCH=OFF")
endif()
if(KVEVENTS_FUZZ AND NOT (KVE_MSGPACK_FOUND AND KVEVENTS_SERVICE))
    message(FATAL_ERROR "KVEVENTS_FUZZ=ON needs libmsgpack "
        "(Debian: libmsgpack-dev) and the service's libraries")
endif()
