/* Says what errno is where nothing of the program's own has failed: as it starts, and behind what the
   agent has a part in. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>

static void *thread(void *argument) {
    return argument;
}

int main(void) {
    printf("as it starts: %d\n", errno);
    for (int other = 0; other < 2; other++) {
        errno = 0;
        void *library = other ? dlmopen(LM_ID_NEWLM, "libm.so.6", RTLD_NOW) : dlopen("libm.so.6", RTLD_NOW);
        int opened = errno;
        errno = 0;
        if (library) dlclose(library);
        printf("opened %d: %d, closed: %d\n", library != NULL, opened, errno);
    }
    errno = 0;
    for (int i = 0; i < 100; i++) {
        pthread_t id;
        if (pthread_create(&id, NULL, thread, NULL) == 0) pthread_join(id, NULL);
    }
    printf("threads: %d\n", errno);
    return 0;
}
