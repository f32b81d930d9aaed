# How C is compiled here. Every target takes this from kve_compile, an
# interface library that is not installed.

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

# Symbols for profiles and backtraces cost nothing at run time. Asserts stay.
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
# Unless somebody (a preset) asked for something else than CMake's own.
if(CMAKE_C_FLAGS_DEBUG STREQUAL "-g")
    set(CMAKE_C_FLAGS_DEBUG "-O0 -g3")
endif()

add_library(kve_compile INTERFACE)
target_compile_definitions(kve_compile INTERFACE _GNU_SOURCE)
target_compile_options(kve_compile INTERFACE
    -Wall -Wextra -Wshadow -Wstrict-prototypes
    -fstack-protector-strong -fno-omit-frame-pointer)
target_link_options(kve_compile INTERFACE -Wl,-z,relro,-z,now)

if(KVEVENTS_WERROR)
    target_compile_options(kve_compile INTERFACE -Werror)
endif()

if(KVEVENTS_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "KVEVENTS_FUZZ=ON needs clang "
            "(-DCMAKE_C_COMPILER=clang); the compiler is "
            "${CMAKE_C_COMPILER_ID}")
    endif()
    target_compile_options(kve_compile INTERFACE -fsanitize=fuzzer-no-link)
    target_link_options(kve_compile INTERFACE -fsanitize=fuzzer-no-link)
endif()

if(KVEVENTS_SANITIZE)
    list(JOIN KVEVENTS_SANITIZE "," names)
    target_compile_options(kve_compile INTERFACE
        -fsanitize=${names} -fno-sanitize-recover=all)
    target_link_options(kve_compile INTERFACE -fsanitize=${names})
else()
    # The sanitizers check more than this does, and do not go with it.
    target_compile_options(kve_compile INTERFACE
        "$<$<CONFIG:Release>:SHELL:-U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=2>")
endif()
