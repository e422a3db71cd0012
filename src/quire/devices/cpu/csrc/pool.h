// A persistent thread pool. A step is one parallel region, which threads may join late, or not at all: the caller of
// `run` is thread 0 and could do it alone. So a descheduled thread delays the others only if it holds work (see
// Program::work), not at every op.
//
// A waiting thread spins first, since the next op is usually microseconds away, and then sleeps.

#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace quire {

// A counter that only grows, and the threads that wait for it.
class Epoch {
  public:
    uint32_t now() const { return value_.load(std::memory_order_acquire); }
    void advance();
    void wait_beyond(uint32_t seen, int spins);

  private:
    alignas(64) std::atomic<uint32_t> value_{0};
    std::atomic<int> sleepers_{0};
    std::mutex mutex_;
    std::condition_variable changed_;
};

// A pause is some 40 cycles: about 50 microseconds inside a step, about 400 between two steps.
constexpr int SPINS_IN_STEP = 4000, SPINS_BETWEEN = 30000;

class Pool {
  public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int size() const { return num_threads_; }

    // Runs job(0) here and job(i) on the threads that join in time; returns when all of them are done. One region at a
    // time: other callers wait.
    void run(const std::function<void(int)> &job);

  private:
    struct Crew;
    void start();

    const int num_threads_;
    std::mutex turn_;
    Crew *crew_ = nullptr;
    long process_ = 0;
};

}  // namespace quire
