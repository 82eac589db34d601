// asks: may a second libc, of another namespace, set the action of SIGTRAP? (HIT_13, dlmopen(3))
// short
#include "stranger.h"
#include <dlfcn.h>

static volatile int fired;
static void handler(int signal) { (void)signal; fired++; }

FUNCTION static int work(int n) { return n * 3; }

int main(void) {
    void *other = dlmopen(LM_ID_NEWLM, "libc.so.6", RTLD_NOW | RTLD_LOCAL);
    if (!other) SKIP("dlmopen");
    int (*set)(int, const struct sigaction *, struct sigaction *) = dlsym(other, "sigaction");
    int (*send)(int) = dlsym(other, "raise");
    CHECK(set && send);
    struct sigaction action = {.sa_handler = handler};
    CHECK(set(SIGTRAP, &action, NULL) == 0);
    int sum = 0;
    for (int i = 0; i < 100; i++) sum += work(i), getppid();
    send(SIGTRAP);
    for (int i = 0; i < 100; i++) sum += work(i), getppid();
    printf("sum %d, fired %d\n", sum, fired);
    calls(".", "work", 200);
    show_state();
    return 0;
}
