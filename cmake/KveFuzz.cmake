# fuzz/fuzz_NAME.c holds one LLVMFuzzerTestOneInput(). With KVEVENTS_FUZZ it is
# linked with libFuzzer; without, with fuzz/standalone_main.c, which replays
# seeds and mutates them for some seconds, with any compiler. scripts/seeds.py
# makes the seeds: whole payloads, and frames for the targets that read frames.

file(GLOB fuzzers CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/fuzz/fuzz_*.c")
file(GLOB fuzz_shared CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/fuzz/*.c")
list(REMOVE_ITEM fuzz_shared ${fuzzers})
if(KVEVENTS_FUZZ)
    list(FILTER fuzz_shared EXCLUDE REGEX "/standalone_main\\.c$")
endif()

# Which of the seeds the target NAME reads. (scripts/fuzz.sh knows it, too.)
function(kve_fuzz_seeds name ret)
    set(kind payloads)
    if(name MATCHES "frames|replay")
        set(kind frames)
    elseif(name STREQUAL "input")
        set(kind questions)
    endif()
    set(${ret} ${kind} PARENT_SCOPE)
endfunction()

# What tests share is there for targets, too, but for what needs cmocka.
file(GLOB fuzz_support CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/tests/support/*.c")
list(FILTER fuzz_support EXCLUDE REGEX "/port\\.c$")

foreach(source IN LISTS fuzzers)
    cmake_path(GET source STEM name)
    add_executable(${name} "${source}" ${fuzz_shared})
    if(name MATCHES "^fuzz_(index|input|state)$")
        target_sources(${name} PRIVATE ${fuzz_support})
    endif()
    set_target_properties(${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/fuzz")
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}/fuzz")
    target_link_libraries(${name} PRIVATE
        kvevents_test PkgConfig::KVE_MSGPACK)
    if(KVEVENTS_FUZZ)
        target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    endif()
endforeach()
