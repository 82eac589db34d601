// What the programs share. Nothing here prints an address, a number of a process, or a time.
#ifndef STRANGER_H
#define STRANGER_H
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

// The machine cannot do what the program asks about.
#define SKIP(why) (printf("skipped: %s\n", why), fflush(stdout), _exit(77))
// What must hold, bare and traced.
#define CHECK(what) ((what) ? (void)0 : (fprintf(stderr, "line %d: %s: %s\n", __LINE__, #what, strerror(errno)), _exit(98)))
// A function that stays one, and is called.
#define FUNCTION __attribute__((noinline, noclone, noipa))

// How often the program has called a function: OBJECT is "libc.so.6", or "." for the program itself.
static inline void calls(const char *object, const char *symbol, unsigned long count) {
    printf("calls %s %s %lu\n", object, symbol, count);
}

// A system call by an instruction of the program's own, as Go's runtime makes them.
static inline long bare_call(long number, long a, long b, long c, long d) {
    register long r10 __asm__("r10") = d;
    long answer;
    __asm__ volatile("syscall" : "=a"(answer) : "a"(number), "D"(a), "S"(b), "d"(c), "r"(r10) : "rcx", "r11", "memory");
    return answer;
}

// A signal set, as numbers.
static inline void show_set(const char *name, const sigset_t *set) {
    printf("%s:", name);
    for (int i = 1; i < 65; i++)
        if (sigismember(set, i) == 1) printf(" %d", i);
    printf("\n");
}

// Open descriptors, and what kind of thing each is.
static inline void show_descriptors(void) {
    char path[64], target[256];
    printf("descriptors:");
    for (int i = 0; i < 1100; i++) {
        struct stat stat;
        if (fstat(i, &stat) != 0) continue;
        snprintf(path, sizeof path, "/proc/self/fd/%d", i);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length < 0 ? 0 : length] = 0;
        char *slash = strrchr(target, '/'), *bracket = strchr(target, '[');
        // A socket's and a pipe's number is another one each time.
        if (bracket && strncmp(target, "anon_inode", 10) != 0) *bracket = 0;
        printf(" %d=%s,%o,%x", i, slash && !strstr(target, "anon_inode") ? slash + 1 : target, stat.st_mode & S_IFMT,
               fcntl(i, F_GETFD));
    }
    printf("\n");
}

// What of its signals the program can ask the system for.
static inline void show_signals(void) {
    sigset_t set;
    CHECK(sigprocmask(SIG_SETMASK, NULL, &set) == 0);
    show_set("blocked", &set);
    CHECK(sigpending(&set) == 0);
    show_set("pending", &set);
    for (int i = 1; i < 65; i++) {
        struct sigaction action;
        if (i == 32 || i == 33 || sigaction(i, NULL, &action) != 0) continue;
        const char *what = action.sa_handler == SIG_DFL ? 0 : action.sa_handler == SIG_IGN ? "ignored" : "handled";
        if (what || action.sa_flags) printf("signal %d: %s, flags %x\n", i, what ? what : "default", action.sa_flags);
    }
    stack_t stack;
    CHECK(sigaltstack(NULL, &stack) == 0);
    printf("alternate stack: flags %d, size %zu\n", stack.ss_flags, stack.ss_size);
}

// One line of /proc/self/status.
static inline void show_status(const char *key) {
    char line[512];
    FILE *file = fopen("/proc/self/status", "re");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (strncmp(line, key, strlen(key)) == 0 && line[strlen(key)] == ':') printf("status %s", line);
    fclose(file);
}

// All of it: the last thing that most programs do.
static inline void show_state(void) {
    show_descriptors();
    show_signals();
    static const char *const keys[] = {"Threads", "SigPnd", "ShdPnd", "SigBlk", "NoNewPrivs", "Seccomp"};
    for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) show_status(keys[i]);
    fflush(stdout);
}

static inline void handle(int signal, void (*handler)(int, siginfo_t *, void *), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = handler;
    action.sa_flags = SA_SIGINFO | flags;
    CHECK(sigaction(signal, &action, NULL) == 0);
}

static inline void on(int signal, void (*handler)(int), int flags) {
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = flags;
    CHECK(sigaction(signal, &action, NULL) == 0);
}

// How a child ended, without its number.
static inline void show_child(const char *name, pid_t pid) {
    int status = 0;
    while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR);
    if (WIFEXITED(status)) printf("%s: status %d\n", name, WEXITSTATUS(status));
    else printf("%s: signal %d\n", name, WTERMSIG(status));
    fflush(stdout);
}
#endif
