// asks: does a robust mutex say that its owner, a thread and a process, has died? (get_robust_list(2))
#include "stranger.h"

static pthread_mutex_t *mutex;

static void *thread(void *argument) {
    pthread_mutex_lock(mutex);
    return argument;
}

int main(void) {
    mutex = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    CHECK(pthread_mutex_init(mutex, &attributes) == 0);
    for (int i = 0; i < 10; i++) {
        pthread_t id;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
        pthread_join(id, NULL);
        int answer = pthread_mutex_lock(mutex);
        printf("thread: %d ", answer == EOWNERDEAD);
        pthread_mutex_consistent(mutex);
        pthread_mutex_unlock(mutex);
        pid_t pid = fork();
        if (pid == 0) {
            pthread_mutex_lock(mutex);
            _exit(0);
        }
        int status;
        waitpid(pid, &status, 0);
        answer = pthread_mutex_lock(mutex);
        printf("process: %d\n", answer == EOWNERDEAD);
        pthread_mutex_consistent(mutex);
        pthread_mutex_unlock(mutex);
    }
    return 0;
}
