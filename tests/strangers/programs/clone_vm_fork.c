// asks: does a thread that has made a child on its own storage fork as bare, calls and hits in all of its
// handlers included? (HIT_7, RET_13, clone(2))
// probe: -f
#include "stranger.h"

FUNCTION static int work(int n) { return n * 3 + 1; }

static int nothing(void *argument) { return (int)(long)argument; }

static void before(void) { work(1); }
static void in_parent(void) { work(2); }
static void in_child(void) { work(3); }

static void *thread(void *argument) {
    char *stack = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    show_child("beside", clone(nothing, stack + 65536, CLONE_VM | SIGCHLD, (void *)3));
    for (int i = 0; i < 20; i++) {
        pid_t pid = fork();
        if (pid == 0) _exit(work(i));
        show_child("forked", pid);
    }
    return argument;
}

int main(void) {
    pthread_atfork(before, in_parent, in_child);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
    pthread_join(id, NULL);
    calls(".", "work", 80);
    return 0;
}
