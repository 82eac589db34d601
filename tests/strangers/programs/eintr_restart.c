// asks: are system calls restarted with SA_RESTART and interrupted without, and with the same errno?
// (signal(7))
#include "stranger.h"
#include <time.h>

static volatile int fired, pipes[2];

static void handler(int signal) {
    fired++;
    if (signal == SIGUSR1 && fired % 2 == 0) CHECK(write(pipes[1], "x", 1) == 1);
}

static pthread_t main_thread;
static volatile int phase;

// Sends when the other one sleeps in a system call, which /proc says.
static void *sender(void *argument) {
    char path[64], line[256];
    snprintf(path, sizeof path, "/proc/self/task/%d/syscall", getpid());
    for (int sent = 0; sent < 12;) {
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        ssize_t got = fd < 0 ? -1 : read(fd, line, sizeof line - 1);
        close(fd);
        line[got < 0 ? 0 : got] = 0;
        if (phase == sent + 1 && atoi(line) == SYS_read && line[0] != 'r') {
            sent++;
            pthread_kill(main_thread, SIGUSR1);
            if (sent <= 6) while (fired < sent * 2 - 1) sched_yield();
            if (sent <= 6) pthread_kill(main_thread, SIGUSR1);
        }
        sched_yield();
    }
    return argument;
}

int main(void) {
    CHECK(pipe((int *)pipes) == 0);
    main_thread = pthread_self();
    pthread_t id;
    CHECK(pthread_create(&id, NULL, sender, NULL) == 0);
    char byte;
    on(SIGUSR1, handler, SA_RESTART);
    for (int i = 0; i < 6; i++) {
        phase = i + 1;
        ssize_t got = read(pipes[0], &byte, 1);
        printf("restarted: %zd\n", got);
    }
    fired = 1;
    on(SIGUSR1, (void (*)(int))handler, 0);
    for (int i = 6; i < 12; i++) {
        fired = 0;
        phase = i + 1;
        ssize_t got = read(pipes[0], &byte, 1);
        printf("interrupted: %zd %d\n", got, got < 0 ? errno == EINTR : 0);
    }
    pthread_join(id, NULL);
    return 0;
}
