/* Ends in the middle of a call, in the way that it is told. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *how;
static int started[2];

static int is(const char *name) { return strcmp(how, name) == 0; }

__attribute__((noinline, noipa)) int work(int n) {
    if (n > 0) return n;
    char *const words[] = {"true", NULL}, *const nothing[] = {NULL};
    if (is("exit")) exit(0);
    if (is("_exit")) _exit(0);
    if (is("bare exit")) syscall(SYS_exit_group, 0);
    if (is("signal")) raise(SIGTERM);
    if (is("kill")) raise(SIGKILL);
    if (is("abort")) abort();
    if (is("pthread_exit")) pthread_exit(NULL);
    if (is("execl")) execl("/bin/true", "true", (char *)NULL);
    if (is("bare exec")) syscall(SYS_execve, "/bin/true", words, nothing);
    if (is("failed exec")) return execl("/nonexistent", "true", (char *)NULL) == -1;
    if (is("fork")) {
        pid_t pid = fork();
        if (pid > 0) waitpid(pid, NULL, 0);
        return 1;
    }
    if (is("child")) {
        if (fork() == 0) _exit(work(1));
        wait(NULL);
        return 1;
    }
    (void)!write(started[1], "", 1);
    for (;;) pause();
}

static void *thread(void *argument) {
    work(0);
    return argument;
}

int main(int argc, char **argv) {
    (void)argc;
    how = argv[1];
    work(1);
    work(2);
    if (!is("other thread")) return work(0) == 99;
    char byte;
    pthread_t id;
    if (pipe(started) != 0 || pthread_create(&id, NULL, thread, NULL) != 0) return 9;
    (void)!read(started[0], &byte, 1);
    exit(0);
}
