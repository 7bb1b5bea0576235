// What g++ 12 to 14 refer to that is newer than manylinux_2_28 (glibc 2.28, GLIBCXX 3.4.25): a flag, an initialiser,
// what a vector throws that cannot grow, and members of strings and string streams. Defined here, and exported by
// nobody (exports.map), a package needs nothing newer and loads on older systems.
#include <new>
#include <sstream>

extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;  // 0 = "there may be threads": atomics everywhere
// g++ 13's <iostream> asks for the standard streams to be made; packages use none of them.
__attribute__((visibility("hidden"))) void _ZSt21ios_base_library_initv() {}
// GLIBCXX 3.4.29. Weak: a static libstdc++ brings its own.
__attribute__((weak, visibility("hidden"), noreturn)) void _ZSt28__throw_bad_array_new_lengthv() {
  throw std::bad_array_new_length();
}
}
template std::basic_stringstream<char>::basic_stringstream();
template std::basic_ostringstream<char>::basic_ostringstream();
template std::string std::basic_stringbuf<char>::str() const&;  // C++20's, GLIBCXX 3.4.29
#if __GNUC__ >= 13 && !defined(__clang__)
template void std::string::_M_replace_cold(char*, size_t, const char*, const size_t, const size_t);  // GLIBCXX 3.4.31
#endif
