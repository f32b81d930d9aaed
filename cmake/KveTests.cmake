# Tests, found by where they lie:
#
#   tests/unit/FOLDER/test_NAME.c   unit/FOLDER/NAME   (cmocka)
#   tests/race/[test_]NAME.c        race/NAME          (cmocka or plain main)
#   fuzz/fuzz_NAME.c                fuzz/NAME          seeds and mutations
#   tests/e2e/NAME.sh, NAME.py      e2e/NAME           the command, real sockets
#   tests/interop/NAME.py, .sh      interop/NAME       against other programs
#   tests/fault/NAME.sh             fault/NAME         seeded runs under faults
#   tests/engine/NAME.py            engine/NAME        a real engine, if given
#   tests/soak/NAME.py              soak/NAME          an hour under faults
#   tests/install/NAME.sh           install/NAME       the installed package
#   tests/meta/NAME.sh, NAME.py     meta/NAME          rules about the sources
#   tests/mutants/NAME.py           mutants/NAME       tests are able to fail
#
# tests/tools/NAME.c is no test but a program NAME that scripts run; the .c
# files of tests/fault/ together are such a program, too: fault.
#
# The other .c files of a test's own folder and of tests/support/ are there for
# it: libraries, of which it takes what it needs. Scripts whose name begins with
# _, lib, common or helper are not tests. The first part of a test's name is its
# label. A test that exits with 77 was skipped; it says why in its last line.
#
# In the first lines of its file a test can say what it needs:
#
#   ctest-timeout: 300    seconds instead of 120 (doubled under sanitizers)
#   ctest-serial: yes     never beside another test
#   ctest-label: long     one more label; "long" is left to make check-long,
#                         "single" is not run under ThreadSanitizer

enable_testing()

set(KVEVENTS_PYTHON "${PROJECT_SOURCE_DIR}/build/venv/bin/python3" CACHE
    FILEPATH "Python with the modules the tests need (scripts/venv.sh)")

set(KVE_TSAN_SUPPRESSIONS "${PROJECT_SOURCE_DIR}/tests/tsan.supp")
set(KVE_TEST_ENV
    "KVEVENTS_SOURCE_DIR=${PROJECT_SOURCE_DIR}"
    "KVEVENTS_BUILD_DIR=${PROJECT_BINARY_DIR}"
    "KVEVENTS_PYTHON=${KVEVENTS_PYTHON}"
    "KVEVENTS_SANITIZE=${KVEVENTS_SANITIZE}"
    "PYTHONDONTWRITEBYTECODE=1"
    "ASAN_OPTIONS=detect_stack_use_after_return=1:strict_string_checks=1"
    "UBSAN_OPTIONS=print_stacktrace=1"
    "TSAN_OPTIONS=suppressions=${KVE_TSAN_SUPPRESSIONS}:halt_on_error=1")
if(TARGET kvevents_tool)
    list(APPEND KVE_TEST_ENV "KVEVENTS_BIN=$<TARGET_FILE:kvevents_tool>")
endif()

# Give test NAME the properties every test has, and those SOURCE asks for.
function(kve_test_properties name source)
    set(timeout 120)
    set(serial OFF)
    string(REGEX MATCH "^[^/]+" labels "${name}")

    file(STRINGS "${source}" lines LIMIT_COUNT 40 REGEX "ctest-[a-z]+: ")
    foreach(line IN LISTS lines)
        if(line MATCHES "ctest-timeout: ([0-9]+)")
            set(timeout ${CMAKE_MATCH_1})
        elseif(line MATCHES "ctest-serial: yes")
            set(serial ON)
        elseif(line MATCHES "ctest-label: ([a-z]+)")
            list(APPEND labels ${CMAKE_MATCH_1})
        else()
            message(FATAL_ERROR "${source}: cannot read '${line}'; accepted "
                "are ctest-timeout: SECONDS, ctest-serial: yes and "
                "ctest-label: WORD")
        endif()
    endforeach()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS
        "${source}")
    if(KVEVENTS_SANITIZE)
        math(EXPR timeout "2 * ${timeout}")
    endif()

    set_tests_properties(${name} PROPERTIES
        ENVIRONMENT "${KVE_TEST_ENV}"
        LABELS "${labels}"
        TIMEOUT ${timeout}
        RUN_SERIAL ${serial}
        SKIP_RETURN_CODE 77)
endfunction()

# The libraries of tests: what all share, and what those of a folder share.
function(kve_test_part target folder)
    add_library(${target} STATIC ${ARGN})
    target_include_directories(${target} PRIVATE "${folder}")
    target_link_libraries(${target} PUBLIC kvevents_test
        PkgConfig::KVE_CMOCKA PkgConfig::KVE_JANSSON PkgConfig::KVE_MSGPACK m)
endfunction()

# One executable and one test from SOURCE, with libraries linked to it.
function(kve_c_test name source)
    string(REPLACE "/" "_" target "test_${name}")
    add_executable(${target} "${source}")
    set_target_properties(${target} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    cmake_path(GET source PARENT_PATH folder)
    target_include_directories(${target} PRIVATE "${folder}")
    target_link_libraries(${target} PRIVATE ${ARGN})
    add_test(NAME ${name} COMMAND ${target}
        WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
    kve_test_properties(${name} "${source}")
endfunction()

file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/tools/*.c")
foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    add_executable(${name} "${source}")
    set_target_properties(${name} PROPERTIES
        RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
    target_link_libraries(${name} PRIVATE kvevents_test)
endforeach()

file(GLOB support CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/support/*.c")
kve_test_part(kve_test_support
    "${PROJECT_SOURCE_DIR}/tests/support" ${support})

file(GLOB sources CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/tests/unit/*/test_*.c")
foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    cmake_path(GET folder FILENAME part)
    cmake_path(GET source STEM name)
    string(REGEX REPLACE "^test_" "" name "${name}")
    file(GLOB helpers CONFIGURE_DEPENDS "${folder}/*.c")
    list(FILTER helpers EXCLUDE REGEX "/test_[^/]*$")
    set(libraries kve_test_support)
    if(helpers)
        set(libraries kve_test_${part} kve_test_support)
        if(NOT TARGET kve_test_${part})
            kve_test_part(kve_test_${part} "${folder}" ${helpers})
            target_link_libraries(kve_test_${part} PUBLIC kve_test_support)
        endif()
    endif()
    kve_c_test(unit/${part}/${name} "${source}" ${libraries})
endforeach()

file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/race/*.c")
foreach(source IN LISTS sources)
    cmake_path(GET source STEM name)
    string(REGEX REPLACE "^test_" "" name "${name}")
    kve_c_test(race/${name} "${source}" kve_test_support)
endforeach()

file(GLOB sources CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/tests/fault/*.c")
add_executable(fault ${sources} "${PROJECT_SOURCE_DIR}/tests/support/fold.c")
set_target_properties(fault PROPERTIES
    RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
target_link_libraries(fault PRIVATE kvevents_test)

# Seeds are made from the data of tests/wire just before they are needed.
if(fuzzers AND NOT KVEVENTS_FUZZ)
    add_test(NAME fuzz/seeds COMMAND
        "${PROJECT_SOURCE_DIR}/scripts/seeds.py" "${PROJECT_BINARY_DIR}/seeds")
    kve_test_properties(fuzz/seeds "${PROJECT_SOURCE_DIR}/scripts/seeds.py")
    set_tests_properties(fuzz/seeds PROPERTIES FIXTURES_SETUP seeds)

    foreach(source IN LISTS fuzzers)
        cmake_path(GET source STEM target)
        string(REGEX REPLACE "^fuzz_" "" name "${target}")
        kve_fuzz_seeds(${name} seeds)
        add_test(NAME fuzz/${name}
            COMMAND ${target} -seconds=5 "${PROJECT_BINARY_DIR}/seeds/${seeds}"
            WORKING_DIRECTORY "${PROJECT_BINARY_DIR}")
        kve_test_properties(fuzz/${name} "${source}")
        set_tests_properties(fuzz/${name} PROPERTIES FIXTURES_REQUIRED seeds)
    endforeach()
endif()

foreach(kind IN ITEMS
        e2e interop fault engine soak install meta mutants)
    file(GLOB sources CONFIGURE_DEPENDS
        "${PROJECT_SOURCE_DIR}/tests/${kind}/*.sh"
        "${PROJECT_SOURCE_DIR}/tests/${kind}/*.py")
    list(FILTER sources EXCLUDE REGEX "/(_|lib|common|helper)[^/]*$")
    foreach(source IN LISTS sources)
        cmake_path(GET source STEM name)
        string(REGEX REPLACE "^test_" "" name "${name}")
        add_test(NAME ${kind}/${name}
            COMMAND "${PROJECT_SOURCE_DIR}/scripts/run-test.sh" "${source}"
            WORKING_DIRECTORY "${PROJECT_SOURCE_DIR}")
        kve_test_properties(${kind}/${name} "${source}")
    endforeach()
endforeach()
