// C++, and C but for exceptions: calls that are left without a return, in the way that the argument says.
#include <pthread.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef __cplusplus
#include <stdexcept>
#define KEPT extern "C" __attribute__((noinline, noipa))
#else
#define KEPT __attribute__((noinline, noipa))
#endif

static volatile bool is_true = true;
static jmp_buf back;

KEPT void leaf(int n) { __asm__ volatile("" : : "r"(n)); }

#ifdef __cplusplus
// Calls while an exception passes.
struct Guard {
    int n;
    ~Guard() { leaf(n); }
};

KEPT void thrower(int n) {
    leaf(n);
    if (is_true)
        throw std::runtime_error("left");
    __asm__ volatile("");
}

KEPT void passed(int n) {
    Guard guard{10 + n};
    thrower(n);
    __asm__ volatile("");
}

KEPT void catcher(int n) {
    try {
        passed(n);
    } catch (const std::exception &) {
        leaf(20 + n);
    }
    leaf(30 + n);
}
#else
KEPT void thrower(int n) { leaf(n); }
KEPT void passed(int n) { leaf(n); }
KEPT void catcher(int n) { leaf(n); }
#endif

KEPT void jumper(int n) {
    leaf(n);
    if (is_true)
        longjmp(back, 1);
    __asm__ volatile("");
}

KEPT void third(int n) {
    jumper(n);
    __asm__ volatile("");
}

KEPT void second(int n) {
    third(n);
    __asm__ volatile("");
}

KEPT void jumped(int n) {
    if (setjmp(back) == 0)
        second(n);
    leaf(20 + n);
}

KEPT void ender(int n) {
    leaf(n);
    if (is_true)
        pthread_exit(NULL);
    __asm__ volatile("");
}

KEPT void *ended(void *unused) {
    ender(1);
    __asm__ volatile("");
    return unused;
}

static int pipes[2];

KEPT void waiter(int n) {
    leaf(n);
    char byte;
    // A point of cancellation.
    while (read(pipes[0], &byte, 1) >= 0)
        ;
}

KEPT void *cancelled(void *unused) {
    waiter(1);
    __asm__ volatile("");
    return unused;
}

KEPT void quitter(int n) {
    leaf(n);
    if (is_true)
        exit(0);
    __asm__ volatile("");
}

KEPT void quits(int n) {
    if (n == 1)
        quitter(n);
    leaf(n);
    if (is_true)
        _exit(0);
    __asm__ volatile("");
}

static void in_thread(void *(*work)(void *), bool cancel) {
    pthread_t thread;
    pthread_create(&thread, NULL, work, NULL);
    if (cancel)
        pthread_cancel(thread);
    pthread_join(thread, NULL);
    leaf(40);
}

int main(int count, char **words) {
    const char *how = count > 1 ? words[1] : "";
    if (!strcmp(how, "throw"))
        for (int n = 1; n <= 2; n++)
            catcher(n);
    if (!strcmp(how, "jump"))
        for (int n = 1; n <= 2; n++)
            jumped(n);
    if (!strcmp(how, "thread"))
        in_thread(ended, false);
    if (!strcmp(how, "cancel") && pipe(pipes) == 0)
        in_thread(cancelled, true);
    if (!strcmp(how, "exit"))
        quits(1);
    if (!strcmp(how, "_exit"))
        quits(2);
    leaf(50);
    return 0;
}
