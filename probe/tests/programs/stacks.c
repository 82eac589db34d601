// C++: stacks of every kind that a compiler makes without frame pointers, at each call of `mark`. `gdb` and
// `probe` are asked for the same ones. The argument says how many.
#include <algorithm>
#include <alloca.h>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

static int left;

extern "C" __attribute__((noinline)) void mark(int n) {
    asm volatile("" : : "r"(n) : "memory");
    left--;
}

// Marks while an exception passes.
struct Guard {
    int n;
    __attribute__((noinline)) ~Guard() { mark(n); }
};

struct Node {
    virtual int go(int depth, unsigned seed) = 0;
    virtual ~Node() = default;
};

static Node *nodes[8];

static unsigned next(unsigned seed) { return seed * 1103515245 + 12345; }

__attribute__((noinline)) static int deeper(int depth, unsigned seed) {
    if (depth <= 0 || left <= 0) {
        mark(depth);
        return 1;
    }
    seed = next(seed);
    return nodes[seed >> 16 & 7]->go(depth - 1, seed);
}

// Many registers that are kept.
struct Busy : Node {
    int go(int depth, unsigned seed) override {
        int a = seed & 3, b = seed >> 2 & 3, c = seed >> 4 & 3, d = seed >> 6 & 3, e = seed >> 8 & 3;
        int f = deeper(depth, seed);
        mark(a);
        int g = deeper(depth - 2, seed + 1);
        return a + b * f + c * g + d * f * g + e;
    }
};

// A frame whose length is known only when it is there.
struct Variable : Node {
    int go(int depth, unsigned seed) override {
        char *room = static_cast<char *>(alloca(16 + (seed & 255)));
        memset(room, depth, 16);
        int sum = deeper(depth, seed) + room[3];
        mark(sum);
        return sum;
    }
};

// A stack pointer that is aligned.
struct Aligned : Node {
    int go(int depth, unsigned seed) override {
        alignas(64) volatile char room[128];
        room[depth & 63] = 1;
        int sum = deeper(depth, seed) + room[depth & 63];
        mark(sum);
        return sum;
    }
};

// Both.
struct AlignedVariable : Node {
    int go(int depth, unsigned seed) override {
        alignas(32) volatile char room[64];
        char *more = static_cast<char *>(alloca(seed & 127));
        asm volatile("" : : "r"(more) : "memory");
        room[1] = 2;
        int sum = deeper(depth, seed) + room[1];
        mark(sum);
        return sum;
    }
};

struct Error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// Thrown through frames with destructors, caught here or thrown again.
struct Throwing : Node {
    __attribute__((noinline)) static void fail(int depth, unsigned seed) {
        Guard guard{depth};
        deeper(depth - 3, seed);
        throw Error("at " + std::to_string(depth));
    }
    int go(int depth, unsigned seed) override {
        try {
            Guard guard{-depth};
            try {
                fail(depth, seed);
            } catch (const Error &error) {
                mark(int(strlen(error.what())));
                throw;
            }
        } catch (const std::exception &) {
            mark(1000);
            return deeper(depth - 3, seed);
        }
        return 0;
    }
};

// Through libc, and back.
struct Sorting : Node {
    static int compare(const void *a, const void *b) {
        if (left > 0)
            mark(*static_cast<const int *>(a));
        return *static_cast<const int *>(a) - *static_cast<const int *>(b);
    }
    int go(int depth, unsigned seed) override {
        int numbers[4] = {int(seed & 7), int(seed >> 3 & 7), int(seed >> 6 & 7), int(seed >> 9 & 7)};
        qsort(numbers, 4, sizeof *numbers, compare);
        std::function<int(int)> call = [&](int n) { return deeper(depth - n, seed) + numbers[n]; };
        return call(2);
    }
};

static int handler_depth;
static unsigned handler_seed;

static void handle(int) {
    int depth = handler_depth;
    handler_depth = 0;
    mark(depth);
    if (depth > 2)
        deeper(depth - 2, handler_seed);
}

// In a signal's handler.
struct Signalled : Node {
    int go(int depth, unsigned seed) override {
        handler_depth = depth;
        handler_seed = seed;
        raise(depth & 1 ? SIGUSR1 : SIGUSR2);
        return deeper(depth - 1, seed);
    }
};

static jmp_buf back;

// Left by a jump.
struct Jumping : Node {
    __attribute__((noinline)) static void jump(int depth) {
        mark(depth);
        longjmp(back, 1);
    }
    int go(int depth, unsigned seed) override {
        if (setjmp(back) == 0)
            jump(depth);
        mark(depth + 1);
        return 1 + int(seed & 1);
    }
};

int main(int, char **args) {
    left = atoi(args[1]);
    std::vector<std::unique_ptr<Node>> all;
    all.emplace_back(new Busy);
    all.emplace_back(new Variable);
    all.emplace_back(new Aligned);
    all.emplace_back(new AlignedVariable);
    all.emplace_back(new Throwing);
    all.emplace_back(new Sorting);
    all.emplace_back(new Signalled);
    all.emplace_back(new Jumping);
    std::transform(all.begin(), all.end(), nodes, [](auto &node) { return node.get(); });
    static char stack[1 << 16];
    stack_t other = {};
    other.ss_sp = stack;
    other.ss_size = sizeof stack;
    sigaltstack(&other, nullptr);
    struct sigaction action = {};
    action.sa_handler = handle;
    sigaction(SIGUSR1, &action, nullptr);
    action.sa_flags = SA_ONSTACK;
    sigaction(SIGUSR2, &action, nullptr);
    int sum = 0;
    for (unsigned seed = 1; left > 0; seed++)
        sum += deeper(16, seed * 2654435761u);
    printf("%d\n", sum);
}
