// See tape.h.
#include "tape.h"

// Repeat recorded calls. Each is the address of a kernel's `_play`, the number of its arguments, and these.
EXPORTED void quire_play(const uint64_t* tape, int64_t words) {
    for (const uint64_t* end = tape + words; tape < end; tape += 2 + tape[1])
        reinterpret_cast<void (*)(const uint64_t*)>(tape[0])(tape + 2);
}
