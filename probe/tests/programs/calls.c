/* Calls of each kind that returns: tail calls, recursion of one and of two functions, threads. */
#include <pthread.h>
#include <stdio.h>

#define FAR __attribute__((noinline, noclone))

volatile int sum;

FAR int leaf(int n) { sum += n; return n + 1; }
FAR int last(int n) { return leaf(n) + 1; }
FAR int tail(int n) { sum++; return last(n); }
FAR int deep(int n) { return n == 0 ? leaf(0) : deep(n - 1) + leaf(n); }
FAR int even(int n);
FAR int odd(int n) { return n == 0 ? 0 : even(n - 1) + leaf(n); }
FAR int even(int n) { return n == 0 ? 1 : odd(n - 1) + leaf(n); }

FAR void *work(void *n) {
    deep(*(int *)n);
    sum += tail(3);
    return NULL;
}

FAR void threads(void) {
    for (int n = 1; n < 3; n++) {
        pthread_t thread;
        pthread_create(&thread, NULL, work, &n);
        pthread_join(thread, NULL);
    }
}

int main(void) {
    sum += tail(1);
    deep(3);
    even(3);
    threads();
    leaf(0);
    printf("%d\n", sum);
}
