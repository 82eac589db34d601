// A program for the test to probe: threads that throw and catch, with destructors on the way.
#include <cstdio>
#include <cstdlib>
#include <map>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

static std::mutex lock;
static unsigned long unwound;

struct Guard {
    unsigned long weight;
    ~Guard() {
        std::lock_guard<std::mutex> held(lock);
        unwound += weight;
    }
};

static unsigned long deep(unsigned long depth) {
    Guard guard{depth};
    if (depth == 0)
        throw std::runtime_error("the bottom");
    try {
        return deep(depth - 1) + guard.weight;
    } catch (const std::logic_error &) {
        return 0;
    }
}

int main(int argc, char **argv) {
    unsigned long rounds = argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 10;
    std::vector<std::thread> threads;
    std::map<std::string, unsigned long> caught;
    for (unsigned long thread = 0; thread < 4; thread++)
        threads.emplace_back([&, thread] {
            for (unsigned long round = 0; round < rounds; round++) {
                try {
                    deep((thread + round) % 16);
                } catch (const std::exception &error) {
                    std::lock_guard<std::mutex> held(lock);
                    caught[error.what()]++;
                }
            }
        });
    for (auto &thread : threads)
        thread.join();
    for (auto &[what, times] : caught)
        std::printf("%s: %lu\n", what.c_str(), times);
    std::printf("%lu unwound\n", unwound);
    return 3;
}
