// Lets the extension run on systems with an older libstdc++ and glibc than the ones it is linked with (CMake option
// QUIRE_OLDER_SYSTEMS, for wheels). GCC 12 binds these three names to versions of 2020 to 2022: defined here, hidden,
// they need nothing of the system beyond glibc 2.14 and GLIBCXX_3.4.22, which manylinux_2_28 promises.

#if defined(__GLIBCXX__) || defined(__GLIBC__) || defined(__linux__)

#include <condition_variable>
#include <mutex>
#include <new>

#include <pthread.h>

extern "C" {
// Says whether reference counts may skip atomic instructions. Never: programs have threads.
[[gnu::visibility("hidden")]] char __libc_single_threaded = 0;
}

namespace std {

[[gnu::visibility("hidden"), noreturn]] void __throw_bad_array_new_length() { throw bad_array_new_length(); }

[[gnu::visibility("hidden")]] void condition_variable::wait(unique_lock<mutex> &lock) noexcept {
    pthread_cond_wait(native_handle(), lock.mutex()->native_handle());
}

}  // namespace std

#endif
