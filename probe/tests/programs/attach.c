/* A program that is attached to: it does what a line on its standard input says, and says when it is done. */
#define _GNU_SOURCE
#ifndef STATIC
#include <dlfcn.h>
#endif
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { THREADS = 4, CALLS = 1000, BODIES = 9 };

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

static void handler(int signal) {
    if (work(signal) != signal * 3 + 1)
        fail("a handler");
}

/* Waits for signals with all others blocked, those of breakpoints, too. */
static void *suspends(void *nothing) {
    (void)nothing;
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, NULL);
    sigdelset(&all, SIGUSR1);
    struct timespec time = {0, 1000000};
    while (!over) {
        pthread_kill(pthread_self(), SIGUSR1);
        sigsuspend(&all);
        ppoll(NULL, 0, &time, &all);
    }
    return NULL;
}

/* Libraries that come and go. */
static void *loads(void *nothing) {
    (void)nothing;
#ifndef STATIC
    while (!over) {
        void *library = dlopen("libm.so.6", RTLD_NOW);
        if (!library || dlclose(library))
            fail("dlopen");
        usleep(200);
    }
#endif
    return NULL;
}

/* Children that run in our memory, on a stack that goes with them, while all signals are blocked. */
static void *spawns(void *nothing) {
    (void)nothing;
    while (!over) {
        FILE *child = popen("exit 0", "r");
        if (!child || pclose(child))
            fail("popen");
    }
    return NULL;
}

/* Waits that a stop must not end. */
static void *waits(void *nothing) {
    (void)nothing;
    sigset_t timer;
    sigemptyset(&timer);
    sigaddset(&timer, SIGALRM);
    /* It interrupts epoll_wait although it is ignored. */
    sigaddset(&timer, SIGCHLD);
    pthread_sigmask(SIG_BLOCK, &timer, NULL);
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

/* Waits for SIGUSR1 with all other signals blocked, by one of the calls that can. */
static void wait_by(const char *call) {
    struct sigaction action = {.sa_handler = handler};
    struct epoll_event event;
    sigset_t all;
    int epoll = epoll_create1(0);
    sigaction(SIGUSR1, &action, NULL);
    sigfillset(&all);
    sigprocmask(SIG_BLOCK, &all, NULL);
    sigdelset(&all, SIGUSR1);
    puts("waiting");
    if (!strcmp(call, "sigsuspend\n"))
        sigsuspend(&all);
    else if (!strcmp(call, "ppoll\n"))
        ppoll(NULL, 0, NULL, &all);
    else if (!strcmp(call, "pselect\n"))
        pselect(0, NULL, NULL, NULL, NULL, &all);
    else
        epoll_pwait(epoll, &event, 1, -1, &all);
    puts(errno == EINTR ? "interrupted" : strerror(errno));
    close(epoll);
}

static void slow_handler(int signal) {
    char line[64];
    (void)signal;
    puts("handling");
    if (!fgets(line, sizeof line, stdin))
        fail("fgets");
}

/* Is in a handler until the next line, and has all signals blocked behind it. */
static void handle(void) {
    struct sigaction action = {.sa_handler = slow_handler};
    sigset_t all;
    sigaction(SIGUSR2, &action, NULL);
    sigfillset(&all);
    sigdelset(&all, SIGUSR2);
    sigprocmask(SIG_BLOCK, &all, NULL);
    raise(SIGUSR2);
    puts("handled");
}

int main(void) {
    char line[64];
    pthread_t threads[BODIES];
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
        } else if (!strncmp(line, "wait ", 5)) {
            wait_by(line + 5);
        } else if (!strcmp(line, "handle\n")) {
            handle();
        } else if (!strcmp(line, "load\n")) {
            void *(*bodies[BODIES])(void *) = {busy, busy, busy, comes, waits, waits, suspends, loads, spawns};
            struct sigaction action = {.sa_handler = handler, .sa_flags = SA_RESTART};
            struct itimerval timer = {{0, 700}, {0, 700}};
            sigaction(SIGUSR1, &action, NULL);
            sigaction(SIGALRM, &action, NULL);
            setitimer(ITIMER_REAL, &timer, NULL);
            for (int i = 0; i < BODIES; i++)
                if (pthread_create(&threads[i], NULL, bodies[i], i == 1 ? line : NULL))
                    fail("pthread_create");
            puts("loaded");
        } else if (!strcmp(line, "end\n")) {
            over = 1;
            for (int i = 0; i < BODIES; i++)
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
