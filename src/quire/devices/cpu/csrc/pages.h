// Memory whose pages can be returned to the system while its address stays valid.

#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// Zeroed, page-aligned memory. Only address space is reserved: a page takes memory from its first write until it is
// released. Where the system cannot release pages (anything but Linux), they stay.
class Pages {
  public:
    explicit Pages(size_t bytes);
    ~Pages();
    Pages(Pages &&other) noexcept;
    Pages(const Pages &) = delete;
    Pages &operator=(const Pages &) = delete;
    Pages &operator=(Pages &&) = delete;

    uint8_t *data() const { return data_; }

    // Releases all whole pages between two bytes, which then read as zeros. Returns how many bytes those are.
    size_t give_back(size_t begin, size_t end);

  private:
    void *base_;
    uint8_t *data_;
    size_t bytes_;
};

}  // namespace quire
