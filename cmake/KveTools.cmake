# The command. It links the static library, so that it is one file that runs
# where it was built, and it sees the public headers only.
#
# Its man page and the completions of three shells are written by the command
# itself, from the tables its parser reads, each time it was built anew. (Not
# when it is built for another kind of machine: it cannot run here then.)

file(GLOB KVE_TOOL_SOURCES CONFIGURE_DEPENDS
    "${PROJECT_SOURCE_DIR}/tools/kvevents/*.c")
if(NOT KVEVENTS_SERVICE)
    list(FILTER KVE_TOOL_SOURCES EXCLUDE
        REGEX "/(serve|query|sources|client|config|logs)[^/]*$")
endif()

if(KVE_TOOL_SOURCES)
    add_executable(kvevents_tool ${KVE_TOOL_SOURCES})
    set_target_properties(kvevents_tool PROPERTIES OUTPUT_NAME kvevents)
    target_include_directories(kvevents_tool PRIVATE
        "${PROJECT_SOURCE_DIR}/tools/kvevents")
    target_link_libraries(kvevents_tool PRIVATE
        kve_compile kvevents_static PkgConfig::KVE_JANSSON Threads::Threads)
    if(KVEVENTS_SERVICE)
        target_compile_definitions(kvevents_tool PRIVATE KVE_HAVE_SERVICE=1)
        target_link_libraries(kvevents_tool PRIVATE
            kvevents_service PkgConfig::KVE_INIH PkgConfig::KVE_CURL)
        if(KVE_SYSTEMD_FOUND)
            target_compile_definitions(kvevents_tool PRIVATE
                KVE_HAVE_SYSTEMD=1)
            target_link_libraries(kvevents_tool PRIVATE PkgConfig::KVE_SYSTEMD)
        endif()
    endif()
    install(TARGETS kvevents_tool
        RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}")
endif()

# kve_written FILE DIRECTORY ARGUMENTS...: what the command writes when it is
# called so, installed as DIRECTORY/FILE.
function(kve_written file directory)
    set(path "${PROJECT_BINARY_DIR}/written/${file}")
    add_custom_command(OUTPUT "${path}"
        COMMAND kvevents_tool ${ARGN} > "${path}"
        DEPENDS kvevents_tool
        COMMENT "Writing ${file}"
        VERBATIM)
    install(FILES "${path}" DESTINATION "${directory}")
    set_property(GLOBAL APPEND PROPERTY KVE_WRITTEN "${path}")
endfunction()

if(KVE_TOOL_SOURCES AND NOT CMAKE_CROSSCOMPILING)
    file(MAKE_DIRECTORY "${PROJECT_BINARY_DIR}/written/man"
        "${PROJECT_BINARY_DIR}/written/bash"
        "${PROJECT_BINARY_DIR}/written/zsh"
        "${PROJECT_BINARY_DIR}/written/fish")
    kve_written(man/kvevents.1 "${CMAKE_INSTALL_MANDIR}/man1" help --man)
    kve_written(bash/kvevents
        "${CMAKE_INSTALL_DATADIR}/bash-completion/completions"
        completion bash)
    kve_written(zsh/_kvevents "${CMAKE_INSTALL_DATADIR}/zsh/site-functions"
        completion zsh)
    kve_written(fish/kvevents.fish
        "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d"
        completion fish)
    get_property(written GLOBAL PROPERTY KVE_WRITTEN)
    add_custom_target(kvevents_written ALL DEPENDS ${written})
endif()
