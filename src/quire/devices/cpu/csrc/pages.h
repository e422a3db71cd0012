// Memory whose pages can be given back to the system while it stays where it is.

#pragma once

#include <cstddef>
#include <cstdint>

namespace quire {

// Zeroed memory at a whole page. Only address space is taken: a page costs memory from when it is first written to until
// it is given back. Where the system cannot do that (anything but Linux), pages stay.
class Pages {
  public:
    explicit Pages(size_t bytes);
    ~Pages();
    Pages(Pages &&other) noexcept;
    Pages(const Pages &) = delete;
    Pages &operator=(const Pages &) = delete;
    Pages &operator=(Pages &&) = delete;

    uint8_t *data() const { return data_; }

    // All whole pages between two bytes: they read as zeros from now on. Answers how many bytes those are.
    size_t give_back(size_t begin, size_t end);

  private:
    void *base_;
    uint8_t *data_;
    size_t bytes_;
};

}  // namespace quire
