// asks: do forks of four threads, while others hit, leave children that end? (fork(2))
// probe: -f
#include "stranger.h"

static atomic_int good;
static volatile int stop;

FUNCTION static int work(int n) { return n + 1; }

static void *forks(void *argument) {
    for (int i = 0; i < 15; i++) {
        pid_t pid = fork();
        if (pid == 0) {
            char *some = malloc(1000);
            _exit(some != NULL && work(i) == i + 1 ? 7 : 8);
        }
        int status = 0;
        if (waitpid(pid, &status, 0) == pid && WEXITSTATUS(status) == 7) atomic_fetch_add(&good, 1);
    }
    return argument;
}

static void *hits(void *argument) {
    for (int i = 0; i < 2000 && !stop; i++) free(malloc(64));
    return argument;
}

int main(void) {
    pthread_t ids[5];
    for (int i = 0; i < 5; i++) CHECK(pthread_create(&ids[i], NULL, i < 3 ? forks : hits, NULL) == 0);
    for (int i = 0; i < 3; i++) pthread_join(ids[i], NULL);
    stop = 1;
    for (int i = 3; i < 5; i++) pthread_join(ids[i], NULL);
    printf("%d\n", good);
    calls(".", "work", 45);
    return 0;
}
