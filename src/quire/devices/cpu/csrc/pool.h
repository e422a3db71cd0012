// Threads that stay: a step is one parallel region, its ops are separated by barriers.
//
// Who waits spins first, since the next op is microseconds away, then sleeps, since on a busy or idle machine it may not
// be. The caller of `run` is thread 0, so a pool of one thread has no others.

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

class Barrier {
  public:
    explicit Barrier(int num_threads) : num_threads_(num_threads) {}
    void wait();

  private:
    const int num_threads_;
    alignas(64) std::atomic<int> arrived_{0};
    Epoch epoch_;
};

class Pool {
  public:
    explicit Pool(int num_threads);
    ~Pool();
    Pool(const Pool &) = delete;
    Pool &operator=(const Pool &) = delete;

    int size() const { return num_threads_; }

    // job(thread) on every thread at once; returns when all have. One region at a time: others wait for their turn.
    void run(const std::function<void(int)> &job);

    // Inside a job: nobody goes on until all threads are here.
    void barrier();

  private:
    struct Crew;
    void start();

    const int num_threads_;
    std::mutex turn_;
    Crew *crew_ = nullptr;
    long process_ = 0;
};

}  // namespace quire
