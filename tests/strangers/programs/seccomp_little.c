// asks: under a filter that kills for sigaltstack and rt_tgsigqueueinfo, too, do threads, signals and hits
// work? (HIT_13, seccomp(2)) short
#include "stranger.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>

static const int ALLOWED[] = {SYS_read, SYS_write, SYS_close, SYS_newfstatat, SYS_mmap, SYS_munmap, SYS_mprotect, SYS_brk, SYS_rt_sigaction,
    SYS_rt_sigprocmask, SYS_rt_sigreturn, SYS_madvise, SYS_clone, SYS_clone3, SYS_set_robust_list, SYS_rseq, SYS_futex, SYS_exit,
    SYS_exit_group, SYS_getppid, SYS_getpid, SYS_gettid, SYS_tgkill};

static volatile int fired;
FUNCTION static int work(int n) { return n * 3 + 1; }

static void handler(int signal) {
    (void)signal;
    fired++;
    work(fired);
    getppid();
}

static void *thread(void *argument) {
    raise(SIGUSR1);
    return (char *)argument + getppid() * 0 + work(2);
}

int main(void) {
    enum { N = sizeof ALLOWED / sizeof *ALLOWED };
    struct sock_filter code[N + 3] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr))};
    for (int i = 0; i < N; i++) code[i + 1] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ALLOWED[i], N - i, 0);
    code[N + 1] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS);
    code[N + 2] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog program = {N + 3, code};
    static char little[32768];
    stack_t stack = {.ss_sp = little, .ss_size = sizeof little};
    CHECK(sigaltstack(&stack, NULL) == 0);
    on(SIGUSR1, handler, SA_ONSTACK);
    raise(SIGUSR1);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    printf("now\n");
    fflush(stdout);
    CHECK(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
    for (int i = 0; i < 10; i++) raise(SIGUSR1);
    for (int i = 0; i < 20; i++) {
        pthread_t id;
        void *answer = NULL;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
        pthread_join(id, &answer);
        fired += (int)(long)answer;
    }
    printf("fired %d\n", fired);
    calls("libc.so.6", "getppid", 51);
    calls(".", "work", 51);
    return 0;
}
