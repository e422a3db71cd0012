// See pages.h.

#include "pages.h"

#include <cstdlib>
#include <new>

#if defined(__linux__)
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace quire {

#if defined(__linux__)

namespace {

size_t page_size() {
    static const size_t size = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    return size;
}

}  // namespace

Pages::Pages(size_t bytes) : bytes_(bytes ? bytes : 1) {
    base_ = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) throw std::bad_alloc();
    data_ = static_cast<uint8_t *>(base_);
}

Pages::~Pages() {
    if (base_) munmap(base_, bytes_);
}

size_t Pages::give_back(size_t begin, size_t end) {
    const size_t page = page_size();
    begin = (begin + page - 1) / page * page;
    end = end >= bytes_ ? (bytes_ + page - 1) / page * page : end / page * page;  // the last page is released to its end
    if (begin >= end || madvise(data_ + begin, end - begin, MADV_DONTNEED) != 0) return 0;
    return end - begin;
}

#else

Pages::Pages(size_t bytes) : base_(std::calloc(bytes + 64, 1)), bytes_(bytes) {
    if (!base_) throw std::bad_alloc();
    data_ = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(base_) + 63) / 64 * 64);
}

Pages::~Pages() { std::free(base_); }

size_t Pages::give_back(size_t, size_t) { return 0; }

#endif

Pages::Pages(Pages &&other) noexcept : base_(other.base_), data_(other.data_), bytes_(other.bytes_) {
    other.base_ = nullptr;
}

}  // namespace quire
