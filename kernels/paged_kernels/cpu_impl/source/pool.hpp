// A team of threads for loops over tasks, made for machines whose cores are also wanted by others.
//
// Owns the threads and the hand-over of work; knows no arithmetic. Invariant: the caller never waits for a thread
// that has taken no task, so that a helper without a core costs its help and nothing more. (An OpenMP team waits
// for every member at every barrier: 8 ms each on a busy two-core machine.)
#pragma once
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#if defined(__x86_64__) || defined(__i386__)
static inline void relax() { __builtin_ia32_pause(); }
#elif defined(__aarch64__)
static inline void relax() { asm volatile("yield"); }
#else
static inline void relax() {}
#endif

class Pool {
  public:
    // Runs task(0) .. task(count - 1), each once, in any order, on up to `threads` threads. One loop at a time: a
    // second caller meanwhile runs its tasks alone.
    template <class Task> void run(int64_t count, const Task &task) {
        if (count <= 0) return;
        if (count == 1 || threads() == 1 || !busy_.try_lock()) {
            for (int64_t i = 0; i < count; i++) task(i);
            return;
        }
        call_ = [](const void *context, int64_t i) { (*static_cast<const Task *>(context))(i); };
        context_ = &task;
        count_ = count;
        next_.store(0);
        open_.store(true);
        round_.fetch_add(1);
        if (sleeping_.load() > 0) {
            std::lock_guard<std::mutex> guard(mutex_);
            wake_.notify_all();
        }
        work();
        open_.store(false);
        for (int spin = 0; inside_.load() > 0; spin++)  // a helper holds a task: let it have this core if it has none
            spin < SPINS ? relax() : std::this_thread::yield();
        busy_.unlock();
    }

    int threads() const { return threads_.load(std::memory_order_relaxed); }

    // Between loops only. A pool never shrinks: threads beyond `count` sleep. Returns how many there are: fewer than
    // asked for where the system gives no more.
    int resize(int count) {
        std::lock_guard<std::mutex> alone(busy_);
        try {
            for (; started_ < count - 1; started_++) std::thread(&Pool::help, this, started_ + 1).detach();
        } catch (const std::system_error &) {
            count = started_ + 1;
        }
        threads_.store(count < 1 ? 1 : count);
        return threads();
    }

  private:
    static constexpr int SPINS = 4000;  // about 100 us: the gap between two loops of a step, not between two steps

    void work() {
        int64_t i;
        while ((i = next_.fetch_add(1, std::memory_order_relaxed)) < count_) call_(context_, i);
    }

    void help(int number) {
        uint64_t seen = 0;
        for (;;) {
            await(seen, number);
            seen = round_.load();
            inside_.fetch_add(1);
            if (open_.load() && number < threads()) work();
            inside_.fetch_sub(1);
        }
    }

    void await(uint64_t seen, int number) {
        for (int spin = 0; number < threads() && spin < SPINS; spin++) {
            if (round_.load(std::memory_order_acquire) != seen) return;
            relax();
        }
        std::unique_lock<std::mutex> lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, [&] { return round_.load() != seen; });
        sleeping_.fetch_sub(1);
    }

    std::mutex busy_, mutex_;
    std::condition_variable wake_;
    std::atomic<int> threads_{1}, inside_{0}, sleeping_{0};
    alignas(64) std::atomic<uint64_t> round_{0};
    alignas(64) std::atomic<int64_t> next_{0};
    std::atomic<bool> open_{false};
    void (*call_)(const void *, int64_t) = nullptr;
    const void *context_ = nullptr;
    int64_t count_ = 0;
    int started_ = 0;
};

// Never destroyed: its threads may outlive every other static object.
static Pool &pool() {
    static Pool *only = new Pool;
    return *only;
}

// Memory of one thread for the length of a task: at least `count` floats, aligned for any vector.
static inline float *scratch(size_t count) {
    struct Memory {
        std::vector<float> values;
    };
    thread_local Memory memory;
    if (memory.values.size() < count + 16) memory.values.resize(count + 16);
    auto at = reinterpret_cast<uintptr_t>(memory.values.data());
    return reinterpret_cast<float *>((at + 63) & ~uintptr_t(63));
}
