// asks: do SECCOMP_RET_TRAP with a handler that answers in the kernel's place, SECCOMP_RET_ERRNO,
// SECCOMP_RET_TRACE without a tracer and SECCOMP_FILTER_FLAG_TSYNC do what they do bare? (HIT_13, seccomp(2))
#include "stranger.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <ucontext.h>

static volatile int trapped, codes, numbers;

static void answers(int signal, siginfo_t *info, void *context) {
    ucontext_t *at = context;
    trapped++;
    codes += info->si_code == 1 && signal == SIGSYS;
    numbers += info->si_syscall == SYS_getppid;
    at->uc_mcontext.gregs[REG_RAX] = 4711;
}

static pthread_barrier_t barrier;
static void *thread(void *argument) {
    pthread_barrier_wait(&barrier);
    pthread_barrier_wait(&barrier);
    long sum = 0;
    for (int i = 0; i < 10; i++) sum += getppid();
    (void)argument;
    return (void *)sum;
}

int main(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getppid, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | 41),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getsid, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRACE),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    handle(SIGSYS, answers, SA_NODEFER);
    pthread_t id;
    void *sum = NULL;
    pthread_barrier_init(&barrier, NULL, 2);
    CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
    pthread_barrier_wait(&barrier);
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &program) == 0);
    pthread_barrier_wait(&barrier);
    long own = 0;
    for (int i = 0; i < 10; i++) own += getppid();
    pthread_join(id, &sum);
    printf("own %ld, thread's %ld, trapped %d, codes %d, numbers %d\n", own, (long)sum, trapped, codes, numbers);
    int answer = getpgid(0);
    printf("error: %d, %d\n", answer, errno);
    answer = getsid(0);
    printf("without a tracer: %d, %s\n", answer, strerror(errno));
    calls("libc.so.6", "getppid", 20);
    show_state();
    return 0;
}
