#include "team.h"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <thread>
#include <vector>

#include "exported.h"

namespace quire {
namespace {

// About 50 microseconds: longer than Python takes between two kernels, and short beside a step.
constexpr int SPINS = 2000;

int spins = SPINS;

inline void pause() {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    asm volatile("yield");
#endif
}

// Number of the last call of `team_run`, which other threads wait for, and the number of threads that sleep.
struct alignas(64) Turn {
    std::atomic<uint32_t> number{0};
    std::atomic<int> asleep{0};
};

struct Team {
    int size = 1;
    Turn turn;
    alignas(64) std::atomic<int> busy{0};
    Body body = nullptr;
    void* context = nullptr;
};

Team team;

uint32_t await_turn(uint32_t seen) {
    for (int spin = 0; spin < spins; ++spin) {
        const uint32_t now = team.turn.number.load(std::memory_order_acquire);
        if (now != seen) return now;
        pause();
    }
    team.turn.asleep.fetch_add(1);
    uint32_t now;
    while ((now = team.turn.number.load()) == seen) team.turn.number.wait(seen);
    team.turn.asleep.fetch_sub(1);
    return now;
}

void serve(int thread) {
    uint32_t seen = 0;
    for (;;) {
        seen = await_turn(seen);
        team.body(team.context, thread);
        team.busy.fetch_sub(1, std::memory_order_release);
    }
}

void pin([[maybe_unused]] pthread_t thread, [[maybe_unused]] int cpu) {
#if defined(__linux__)  // macOS pins no threads
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(cpu, &set);
    pthread_setaffinity_np(thread, sizeof(set), &set);
#endif
}

}  // namespace

int team_size() { return team.size; }

void team_run(Body body, void* context) {
    if (team.size == 1) return body(context, 0);
    team.body = body;
    team.context = context;
    team.busy.store(team.size - 1, std::memory_order_relaxed);
    team.turn.number.fetch_add(1);
    if (team.turn.asleep.load()) team.turn.number.notify_all();
    body(context, 0);
    for (int spin = 0; team.busy.load(std::memory_order_acquire); ++spin) {
        if (spin < SPINS) {
            pause();
        } else {
            sched_yield();
        }
    }
}

}  // namespace quire

// Start the team's threads, once in a process; a second call changes nothing. `cpus`: core of each thread, of which
// the caller's, the first, is not used; null: threads are not pinned. Returns the size of the team.
EXPORTED int quire_start(int threads, const int* cpus) {
    using quire::team;
    if (team.size > 1) return team.size;
    team.size = std::clamp(threads, 1, quire::MAX_THREADS);
    for (int thread = 1; thread < team.size; ++thread) {
        std::thread other(quire::serve, thread);
        if (cpus) quire::pin(other.native_handle(), cpus[thread]);
        other.detach();
    }
    return team.size;
}

// From now on idle threads of the team sleep at once, because threads of another library compute on the same cores
// between the team's kernels.
EXPORTED void quire_take_turns() { quire::spins = 0; }
