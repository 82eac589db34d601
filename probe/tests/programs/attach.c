/* A program that is attached to: it does what a line on its standard input says, and says when that is done. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, CALLS = 1000 };

static volatile int over;
static volatile long done;

__attribute__((noinline)) long work(long n) {
    __asm__ volatile("");
    return n * 3 + 1;
}

static void fail(const char *what) {
    fprintf(stderr, "%s: %s\n", what, strerror(errno));
    _exit(3);
}

static void *some(void *wrong) {
    for (long n = 0; n < CALLS; n++)
        if (work(n) != n * 3 + 1)
            *(long *)wrong += 1;
    return NULL;
}

/* THREADS threads that come, make CALLS calls each, and go. */
static long batch(void) {
    pthread_t threads[THREADS];
    long wrong[THREADS] = {0}, sum = 0;
    for (int i = 0; i < THREADS; i++)
        if (pthread_create(&threads[i], NULL, some, &wrong[i]))
            fail("pthread_create");
    for (int i = 0; i < THREADS; i++) {
        pthread_join(threads[i], NULL);
        sum += wrong[i];
    }
    return sum;
}

/* Calls and allocates all the time. */
static void *busy(void *all_blocked) {
    if (all_blocked) {
        sigset_t all;
        sigfillset(&all);
        pthread_sigmask(SIG_BLOCK, &all, NULL);
    }
    for (long n = 0; !over; n++) {
        if (work(n) != n * 3 + 1)
            fail("work");
        char *room = malloc(n % 1000 + 1);
        room[0] = 1;
        free(room);
        __sync_fetch_and_add(&done, 1);
    }
    return NULL;
}

/* Threads that come and go all the time. */
static void *comes(void *nothing) {
    (void)nothing;
    while (!over)
        if (batch())
            fail("a thread");
    return NULL;
}

/* Waits that a stop must not end. */
static void *waits(void *nothing) {
    (void)nothing;
    struct epoll_event event;
    int epoll = epoll_create1(0);
    while (!over) {
        if (epoll_wait(epoll, &event, 1, 20) != 0)
            fail("epoll_wait");
        struct timespec time = {0, 20000000};
        if (nanosleep(&time, NULL))
            fail("nanosleep");
    }
    return NULL;
}

int main(void) {
    char line[64];
    pthread_t threads[6];
    setvbuf(stdout, NULL, _IOLBF, 0);
    puts("ready");
    while (fgets(line, sizeof line, stdin)) {
        if (!strcmp(line, "batch\n")) {
            printf("%ld wrong\n", batch());
        } else if (!strcmp(line, "block\n")) {
            sigset_t all;
            sigfillset(&all);
            sigprocmask(SIG_BLOCK, &all, NULL);
            puts("blocked");
        } else if (!strcmp(line, "load\n")) {
            void *(*bodies[])(void *) = {busy, busy, busy, comes, waits, waits};
            for (int i = 0; i < 6; i++)
                if (pthread_create(&threads[i], NULL, bodies[i], i == 1 ? line : NULL))
                    fail("pthread_create");
            puts("loaded");
        } else if (!strcmp(line, "end\n")) {
            over = 1;
            for (int i = 0; i < 6; i++)
                pthread_join(threads[i], NULL);
            puts(done ? "worked" : "idle");
        } else if (!strcmp(line, "fork\n")) {
            pid_t child = fork();
            if (!child)
                _exit(batch() ? 1 : 7);
            int status;
            if (waitpid(child, &status, 0) != child)
                fail("waitpid");
            printf("child %d\n", WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status));
        }
    }
    return 0;
}
