// asks: under a filter that kills for what the program does not need, do sigaction, pthread_create and hits
// work? (HIT_13, seccomp(2)) short
#include "stranger.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

static const int ALLOWED[] = {SYS_read, SYS_write, SYS_close, SYS_newfstatat, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_brk, SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_madvise, SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq, SYS_futex, SYS_exit,
    SYS_exit_group, SYS_getppid, SYS_sigaltstack, SYS_gettid};

static volatile int fired;
static void handler(int signal) { (void)signal; fired++; }
static void *thread(void *argument) { return (char *)argument + getppid() * 0 + 1; }

int main(void) {
    enum { N = sizeof ALLOWED / sizeof *ALLOWED };
    struct sock_filter code[N + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < N; i++) code[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ALLOWED[i], N - i, 0);
    code[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {N + 3, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    printf("now\n");
    fflush(stdout);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0);
    for (int i = 0; i < 50; i++) getppid();
    on(SIGUSR1, handler, SA_RESTART);
    pthread_t id;
    void *answer = NULL;
    CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
    pthread_join(id, &answer);
    printf("thread %d, fired %d\n", (int)(long)answer, fired);
    calls("libc.so.6", "getppid", 51);
    return 0;
}
