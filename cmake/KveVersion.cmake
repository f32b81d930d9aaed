# The version lives in one place, include/kvevents/version.h, as
# KVE_VERSION_MAJOR, KVE_VERSION_MINOR and KVE_VERSION_PATCH.

set(KVE_VERSION_HEADER
    "${CMAKE_CURRENT_SOURCE_DIR}/include/kvevents/version.h")

set(KVE_VERSION "")
foreach(part IN ITEMS MAJOR MINOR PATCH)
    set(pattern "^#define[ \t]+KVE_VERSION_${part}[ \t]+([0-9]+)")
    file(STRINGS "${KVE_VERSION_HEADER}" line REGEX "${pattern}")
    if(NOT line MATCHES "${pattern}")
        message(FATAL_ERROR
            "${KVE_VERSION_HEADER}: no #define KVE_VERSION_${part} NUMBER")
    endif()
    list(APPEND KVE_VERSION "${CMAKE_MATCH_1}")
endforeach()
list(JOIN KVE_VERSION "." KVE_VERSION)

# Configure again when the version changes.
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
    "${KVE_VERSION_HEADER}")
