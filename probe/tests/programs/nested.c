/* Calls that nest: nested TIMES. In the first thread and in another one. */
#include <pthread.h>
#include <stdlib.h>

#define APART __attribute__((noinline, noclone))

static volatile int sum;

APART int leaf(int n) {
    for (int i = 0; i < 50; i++) sum += n;
    return n;
}
APART int inner(int n) { return leaf(n) + leaf(n + 1); }
APART int mark(int n) {
    __asm__ volatile("" : "+r"(n));
    return n;
}
APART int outer(int n) {
    int first = inner(n);
    mark(n);
    return first + leaf(n);
}
APART int deep(int n) { return n == 0 ? 0 : 1 + deep(n - 1); }

static void *run(void *times) {
    for (int i = 0; i < *(int *)times; i++) outer(i);
    deep(4);
    return times;
}

int main(int argc, char **argv) {
    int times = argc > 1 ? atoi(argv[1]) : 1;
    pthread_t other;
    run(&times);
    pthread_create(&other, NULL, run, &times);
    pthread_join(other, NULL);
    return 0;
}
