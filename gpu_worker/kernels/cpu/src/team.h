// The threads that compute, and how work is shared among them.
//
// A step is some hundred short kernels one after the other, so the team stays awake for a moment
// between two of them: it spins, then sleeps in a futex. Each thread begins with a share of the tasks of
// its own, one after the other, so that it reads memory from the beginning to the end; then it helps the
// others with theirs: a thread whose core the other services want gets fewer, and nobody waits long.
#pragma once

#include <atomic>
#include <cstdint>

namespace quire {

using Body = void (*)(void* context, int thread);

constexpr int MAX_THREADS = 256;

// Number of threads, the caller's included.
int team_size();

// Run `body` once on every thread of the team, the caller's included; returns when all are done.
// One caller at a time.
void team_run(Body body, void* context);

// Call `task(number, thread)` for each number from 0 to `tasks` - 1, on whatever thread is free.
template <class Task>
void parallel_for(int64_t tasks, const Task& task) {
    if (tasks <= 1 || team_size() == 1) {
        for (int64_t number = 0; number < tasks; ++number) task(number, 0);
        return;
    }
    struct alignas(64) Share {
        std::atomic<int64_t> next;
        int64_t end;
    };
    const int size = team_size();
    Share shares[MAX_THREADS];
    for (int thread = 0; thread < size; ++thread) {
        shares[thread].next.store(thread * tasks / size, std::memory_order_relaxed);
        shares[thread].end = (thread + 1) * tasks / size;
    }
    struct Shared {
        const Task& task;
        Share* shares;
        int size;
    } shared{task, shares, size};
    team_run(
        [](void* context, int thread) {
            const Shared& shared = *static_cast<Shared*>(context);
            for (int other = 0; other < shared.size; ++other) {
                Share& share = shared.shares[(thread + other) % shared.size];
                for (;;) {
                    const int64_t number = share.next.fetch_add(1, std::memory_order_relaxed);
                    if (number >= share.end) break;
                    shared.task(number, thread);
                }
            }
        },
        &shared);
}

}  // namespace quire
