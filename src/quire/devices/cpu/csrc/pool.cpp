// See pool.h.

#include "pool.h"

#if defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {

namespace {

// A pause is some 40 cycles: about 50 microseconds inside a step, about 400 between two steps.
constexpr int SPINS_IN_STEP = 4000, SPINS_BETWEEN = 30000;

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

long current_process() {
#if defined(__unix__) || defined(__APPLE__)
    return static_cast<long>(getpid());
#else
    return 0;
#endif
}

}  // namespace

// Sequentially consistent on purpose: either the waiter sees the new value before it sleeps, or this sees the sleeper.
void Epoch::advance() {
    value_.fetch_add(1);
    if (sleepers_.load() > 0) {
        { std::lock_guard<std::mutex> lock(mutex_); }
        changed_.notify_all();
    }
}

void Epoch::wait_beyond(uint32_t seen, int spins) {
    for (int i = 0; i < spins; ++i) {
        if (now() != seen) return;
        relax();
    }
    std::unique_lock<std::mutex> lock(mutex_);
    sleepers_.fetch_add(1);
    changed_.wait(lock, [&] { return value_.load() != seen; });
    sleepers_.fetch_sub(1);
}

void Barrier::wait() {
    const uint32_t seen = epoch_.now();
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == num_threads_) {
        arrived_.store(0, std::memory_order_relaxed);  // before the others are let go
        epoch_.advance();
    } else {
        epoch_.wait_beyond(seen, SPINS_IN_STEP);
    }
}

struct Pool::Crew {
    explicit Crew(int num_threads) : inside(num_threads) {}

    Epoch jobs;
    Barrier inside;
    const std::function<void(int)> *job = nullptr;
    bool stopping = false;
    std::vector<std::thread> threads;
};

Pool::Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) { start(); }

Pool::~Pool() {
    if (process_ != current_process()) return;  // the threads are another process's
    crew_->stopping = true;
    crew_->jobs.advance();
    for (std::thread &thread : crew_->threads) thread.join();
    delete crew_;
}

void Pool::start() {
    process_ = current_process();
    Crew *crew = crew_ = new Crew(num_threads_);
    for (int i = 1; i < num_threads_; ++i)
        crew->threads.emplace_back([crew, i] {
            for (uint32_t seen = 0;;) {
                crew->jobs.wait_beyond(seen, SPINS_BETWEEN);
                if (crew->stopping) return;
                ++seen;
                (*crew->job)(i);
                crew->inside.wait();
            }
        });
}

void Pool::run(const std::function<void(int)> &job) {
    std::lock_guard<std::mutex> lock(turn_);
    // A forked child has the pool but none of its threads. The old crew is left alone: its locks may be held by them.
    if (process_ != current_process()) start();
    if (num_threads_ == 1) return job(0);
    crew_->job = &job;
    crew_->jobs.advance();
    job(0);
    crew_->inside.wait();
}

void Pool::barrier() {
    if (num_threads_ > 1) crew_->inside.wait();
}

}  // namespace quire
