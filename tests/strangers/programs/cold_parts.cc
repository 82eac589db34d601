// asks: are C++ exceptions through probed frames, cold parts included, as bare? (REG_19, RET_7)
// short
#include "stranger.h"
#include <stdexcept>
#include <string>
#include <vector>

static int destroyed;
struct Guard {
    ~Guard() { destroyed++; }
};

FUNCTION static int thrower(int n) {
    Guard guard;
    if (n % 3 == 0) throw std::runtime_error(std::to_string(n));
    if (n % 3 == 1) throw n;
    return n;
}

FUNCTION static int middle(int n) {
    std::vector<int> some(8, n);
    Guard guard;
    try {
        return thrower(n) + some[3];
    } catch (int m) {
        if (m > 60) throw;
        return m;
    }
}

FUNCTION static int outer(int n) {
    try {
        return middle(n);
    } catch (const std::exception &error) {
        return std::stoi(error.what()) * 2;
    } catch (...) {
        return -1;
    }
}

int main() {
    long sum = 0;
    for (int i = 0; i < 90; i++) sum += outer(i);
    printf("%ld, %d destroyed\n", sum, destroyed);
    calls("libc.so.6", "getppid", 0);
    return 0;
}
