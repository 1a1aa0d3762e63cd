// The thread pool of the kernels (the team), and how tasks are distributed among its threads.
//
// A step is some hundred short kernels one after the other, so idle threads first spin and only then sleep.
// Each thread begins with a range of tasks of its own, in order, so that it reads memory from the beginning to the end.
// Then it takes tasks from the ranges of other threads: a thread that shares its core with other services computes
// fewer tasks, or none, and the others do not wait for it, but for a task that it is at.
#pragma once

#include <atomic>
#include <cstdint>
#include <type_traits>

namespace quire {

using Body = void (*)(void* context, int thread);

constexpr int MAX_THREADS = 256;

// Number of threads of the team, the caller included.
int team_size();

// Run `body` on the caller, and on each other thread of the team that comes to it meanwhile. Returns when all that have
// begun are done. Calls must not overlap.
void team_run(Body body, void* context);

// What a thread has while it computes tasks that need nothing.
struct Nothing {};

// The share of kernels that this thread computes by itself, while other threads compute others: of all tasks the part
// `number` of `of` parts.
struct Share {
    int64_t number = 0, of = 1;
};
inline thread_local Share share;
// Whether threads have shares now, and the team does not compute together. To look here first costs less than a thread's own
// memory.
inline bool sharing = false;

// Call `task(number, thread)`, or `task(number, thread, own)` if it takes three arguments.
template <class Own, class Task>
void call(const Task& task, int64_t number, int thread, [[maybe_unused]] Own& own) {
    if constexpr (std::is_invocable_v<const Task&, int64_t, int>)
        task(number, thread);
    else
        task(number, thread, own);
}

// Spread tasks among the team's threads: see `parallel_for`.
template <class Own, class Task>
void spread(int64_t tasks, const Task& task) {
    if (tasks <= 1 || team_size() == 1) {
        Own own;
        for (int64_t number = 0; number < tasks; ++number) call(task, number, 0, own);
        return;
    }
    struct alignas(64) Range {
        std::atomic<int64_t> next;
        int64_t end;
    };
    const int size = team_size();
    Range ranges[MAX_THREADS];
    for (int thread = 0; thread < size; ++thread) {
        ranges[thread].next.store(thread * tasks / size, std::memory_order_relaxed);
        ranges[thread].end = (thread + 1) * tasks / size;
    }
    struct Shared {
        const Task& task;
        Range* ranges;
        int size;
    } shared{task, ranges, size};
    team_run(
        [](void* context, int thread) {
            const Shared& shared = *static_cast<Shared*>(context);
            Own own;
            for (int other = 0; other < shared.size; ++other) {
                Range& range = shared.ranges[(thread + other) % shared.size];
                for (;;) {
                    const int64_t number = range.next.fetch_add(1, std::memory_order_relaxed);
                    if (number >= range.end) break;
                    call(shared.task, number, thread, own);
                }
            }
        },
        &shared);
}

// Call `task(number, thread)` for each number from 0 to `tasks` - 1, on any thread. Returns when all are done. With
// another type than Nothing each thread has an object of it meanwhile, the tasks' third argument. A thread that has a share
// of the tasks calls these, and returns.
template <class Own = Nothing, class Task>
void parallel_for(int64_t tasks, const Task& task) {
    if (!sharing) return spread<Own>(tasks, task);
    Own own;
    const Share part = share;
    const int64_t end = (part.number + 1) * tasks / part.of;
    for (int64_t number = part.number * tasks / part.of; number < end; ++number) call(task, number, 0, own);
}

// As `parallel_for`, but a thread that has a share of the tasks that follow calls all of these: they prepare what it needs.
template <class Task>
void prepare(int64_t tasks, const Task& task) {
    if (!sharing) return spread<Nothing>(tasks, task);
    for (int64_t number = 0; number < tasks; ++number) task(number, 0);
}

// Compute kernels in shares: calls `compute(kernel)` for each of `kernels` and each of its `shares` shares, on any thread.
template <class Compute>
void in_shares(int64_t kernels, int64_t shares, const Compute& compute) {
    sharing = true;
    spread<Nothing>(kernels * shares, [&](int64_t task, int) {
        share = {task % shares, shares};
        compute(task / shares);
    });
    sharing = false;
}

}  // namespace quire
