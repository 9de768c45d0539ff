# cmake -DUSER_C_MODULES=<checkout>/firmware/ports/usermod/mqqb/micropython.cmake: ports that build with CMake.
add_library(usermod_mqqb INTERFACE)
target_sources(usermod_mqqb INTERFACE ${CMAKE_CURRENT_LIST_DIR}/modmqqb.c)
target_include_directories(usermod_mqqb INTERFACE ${CMAKE_CURRENT_LIST_DIR}/../../../../c_core)
target_link_libraries(usermod INTERFACE usermod_mqqb)
