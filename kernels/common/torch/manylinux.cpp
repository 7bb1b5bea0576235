// Debian 12's g++ 12 refers to three symbols newer than manylinux_2_28 (glibc 2.28, GLIBCXX 3.4.25): one flag and two
// constructors of string streams. Defined here, hidden, a package needs nothing newer and loads on older systems.
#include <sstream>

extern "C" {
extern __attribute__((visibility("hidden"))) char __libc_single_threaded;
char __libc_single_threaded = 0;  // 0 = "there may be threads": atomics everywhere
}
template std::basic_stringstream<char>::basic_stringstream();
template std::basic_ostringstream<char>::basic_ostringstream();
template std::string std::basic_stringbuf<char>::str() const&;  // C++20's, GLIBCXX 3.4.29
