// See pool.h.

#include "pool.h"

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <unistd.h>
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace quire {

namespace {

void relax() {
#if defined(__x86_64__)
    _mm_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

// GCC 12 binds condition_variable::wait to a symbol version that systems before 2022 lack; pthread_cond_wait is not
// new.
void sleep_on(std::condition_variable &changed, std::unique_lock<std::mutex> &lock) {
#if defined(__GLIBCXX__) && defined(__linux__)
    pthread_cond_wait(changed.native_handle(), lock.mutex()->native_handle());
#else
    changed.wait(lock);
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

// Sequentially consistent on purpose: either the waiter sees the new value before it sleeps, or this call sees the
// waiter.
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
    while (value_.load() == seen) sleep_on(changed_, lock);
    sleepers_.fetch_sub(1);
}

struct Pool::Crew {
    Epoch jobs, leaving;
    std::atomic<bool> open{false};
    alignas(64) std::atomic<int> inside{0};
    const std::function<void(int)> *job = nullptr;  // written while closed
    std::atomic<bool> stopping{false};
    std::vector<std::thread> threads;
};

Pool::Pool(int num_threads) : num_threads_(num_threads < 1 ? 1 : num_threads) { start(); }

Pool::~Pool() {
    if (process_ != current_process()) return;  // the threads belong to the parent process
    crew_->stopping = true;
    crew_->jobs.advance();
    for (std::thread &thread : crew_->threads) thread.join();
    delete crew_;
}

void Pool::start() {
    process_ = current_process();
    Crew *crew = crew_ = new Crew();
    for (int i = 1; i < num_threads_; ++i)
        crew->threads.emplace_back([crew, i] {
            for (uint32_t seen = 0;;) {
                crew->jobs.wait_beyond(seen, SPINS_BETWEEN);
                seen = crew->jobs.now();
                if (crew->stopping) return;
                // Enter first, then check: the closing thread checks for threads inside after closing.
                crew->inside.fetch_add(1);
                if (crew->open) (*crew->job)(i);
                if (crew->inside.fetch_sub(1) == 1) crew->leaving.advance();
            }
        });
}

void Pool::run(const std::function<void(int)> &job) {
    std::lock_guard<std::mutex> lock(turn_);
    // A forked child has the pool but none of its threads. The old crew is not touched: its locks may be held.
    if (process_ != current_process()) start();
    if (num_threads_ == 1) return job(0);
    crew_->job = &job;
    crew_->open = true;
    crew_->jobs.advance();
    job(0);
    crew_->open = false;
    for (;;) {
        const uint32_t seen = crew_->leaving.now();
        if (crew_->inside.load() == 0) return;
        crew_->leaving.wait_beyond(seen, SPINS_IN_STEP);
    }
}

}  // namespace quire
