// asks: is a child that shares memory and is no thread as good as bare, while others come and go? (clone(2),
// CLONE_VM)
#include "stranger.h"

static atomic_int sum;

FUNCTION static int work(int n) { return n * 2 + 1; }

static int child(void *argument) {
    for (int i = 0; i < 2000; i++) atomic_fetch_add(&sum, work(i) & 3);
    (void)argument;
    return 3;
}

static void *thread(void *argument) { return argument; }

int main(void) {
    for (int round = 0; round < 20; round++) {
        char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        pid_t pid = clone(child, stack + 65536, CLONE_VM | CLONE_FS | CLONE_FILES | SIGCHLD, NULL);
        CHECK(pid > 0);
        pthread_t id;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
        for (int i = 0; i < 2000; i++) atomic_fetch_add(&sum, work(i) & 3);
        pthread_join(id, NULL);
        int status = 0;
        CHECK(waitpid(pid, &status, 0) == pid);
        if (status != 3 << 8) printf("round %d: %x\n", round, status);
        munmap(stack, 65536);
    }
    printf("sum %d\n", sum);
    show_state();
    return 0;
}
