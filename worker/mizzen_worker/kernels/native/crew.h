// Owns a fixed crew of threads that run one function together, and the barrier between its phases.
//
// The caller is member 0. Members wait by spinning shortly, then asleep: cores may be shared with
// other processes, and a member that lost its core must not cost another one its time slice.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace mizzen {

class Crew {
 public:
  explicit Crew(int size) : size_(size) {
    for (int member = 1; member < size; ++member) {
      threads_.emplace_back([this, member] { serve(member); });
    }
  }

  ~Crew() {
    is_stopping_ = true;
    start_.fetch_add(1);
    start_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  int size() const { return size_; }

  // Run `work(member)` on every member; returns when all are done. Not reentrant.
  void run(const std::function<void(int)>& work) {
    work_ = &work;
    start_.fetch_add(1);
    start_.notify_all();
    work(0);
    barrier();
  }

  // Every member must call it; returns once all have.
  void barrier() {
    if (size_ == 1) return;
    const uint32_t phase = phase_.load();
    if (arrived_.fetch_add(1) + 1 == size_) {
      arrived_.store(0);
      phase_.fetch_add(1);
      phase_.notify_all();
    } else {
      wait_for_change(phase_, phase);
    }
  }

 private:
  static void wait_for_change(const std::atomic<uint32_t>& value, uint32_t seen) {
    constexpr int kSpins = 4000;
    for (int spin = 0; spin < kSpins; ++spin) {
      if (value.load(std::memory_order_acquire) != seen) return;
#if defined(__x86_64__)
      __builtin_ia32_pause();
#endif
    }
    while (value.load(std::memory_order_acquire) == seen) value.wait(seen);
  }

  void serve(int member) {
    uint32_t seen = 0;
    while (true) {
      wait_for_change(start_, seen);
      seen = seen + 1;
      if (is_stopping_) return;
      (*work_)(member);
      barrier();
    }
  }

  const int size_;
  const std::function<void(int)>* work_ = nullptr;
  std::atomic<bool> is_stopping_{false};
  alignas(64) std::atomic<uint32_t> start_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  alignas(64) std::atomic<int> arrived_{0};
  std::vector<std::thread> threads_;
};

}  // namespace mizzen
