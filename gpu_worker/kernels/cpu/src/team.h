// The threads that compute, and how work is shared among them.
//
// A step is some hundred short kernels one after the other, so the team stays awake for a moment
// between two of them: it spins, then sleeps in a futex. Tasks are taken one by one from a counter: a
// thread whose core the other services want gets fewer, and nobody waits long for it.
#pragma once

#include <atomic>
#include <cstdint>

namespace quire {

using Body = void (*)(void* context, int thread);

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
    struct Shared {
        const Task& task;
        int64_t tasks;
        std::atomic<int64_t> next{0};
    } shared{task, tasks};
    team_run(
        [](void* context, int thread) {
            Shared& shared = *static_cast<Shared*>(context);
            for (;;) {
                const int64_t number = shared.next.fetch_add(1, std::memory_order_relaxed);
                if (number >= shared.tasks) return;
                shared.task(number, thread);
            }
        },
        &shared);
}

}  // namespace quire
