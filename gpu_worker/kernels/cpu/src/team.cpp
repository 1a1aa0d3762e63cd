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

// What other threads wait for: `number` is odd while the caller of `team_run` computes, and another one in each call.
// `asleep`: the number of threads that sleep.
struct alignas(64) Turn {
    std::atomic<uint32_t> number{0};
    std::atomic<int> asleep{0};
};

struct Team {
    int size = 1;
    Turn turn;
    // The number of other threads that may be at `body`.
    alignas(64) std::atomic<int> inside{0};
    Body body = nullptr;
    void* context = nullptr;
};

Team team;

uint32_t await_turn(uint32_t seen) {
    const auto is_new = [seen](uint32_t now) { return now % 2 == 1 && now != seen; };
    for (int spin = 0; spin < spins; ++spin) {
        const uint32_t now = team.turn.number.load(std::memory_order_acquire);
        if (is_new(now)) return now;
        pause();
    }
    team.turn.asleep.fetch_add(1);
    uint32_t now;
    while (!is_new(now = team.turn.number.load())) team.turn.number.wait(now);
    team.turn.asleep.fetch_sub(1);
    return now;
}

// A thread says that it is inside, and then looks whether the turn is still on. The caller says that the turn is over,
// and then looks whether a thread is inside. All four are sequentially consistent, so that one of both sees the other.
void serve(int thread) {
    uint32_t seen = 0;
    for (;;) {
        seen = await_turn(seen);
        team.inside.fetch_add(1);
        if (team.turn.number.load() == seen) team.body(team.context, thread);
        team.inside.fetch_sub(1, std::memory_order_release);
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
    team.turn.number.fetch_add(1);
    if (team.turn.asleep.load()) team.turn.number.notify_all();
    body(context, 0);
    team.turn.number.fetch_add(1);
    for (int spin = 0; team.inside.load(); ++spin) {
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

// What has compiled the library: another compiler rounds in other places.
EXPORTED const char* quire_compiler() { return __VERSION__; }
