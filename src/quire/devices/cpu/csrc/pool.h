// Threads that stay. A step is one parallel region, which threads may join late, or not at all: the caller of `run` is
// thread 0 and could do it alone. So a thread that the system took the processor from is waited for only where it holds
// work (see Program::work), not at every op.
//
// Who waits spins first, since the next op is microseconds away, then sleeps, since on a busy or idle machine it may
// not be.

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

// A number that only grows, and the threads that wait for it to.
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

    // job(0) here, job(i) on the threads that come in time; returns when all that came have left. One region at a time:
    // others wait for their turn.
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
