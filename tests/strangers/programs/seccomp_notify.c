// asks: may a supervisor answer a probed program's system calls (SECCOMP_RET_USER_NOTIF), while its calls are
// followed? (RET_5, seccomp_unotify(2))
#include "stranger.h"
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/ioctl.h>

static int listener;

static void *supervisor(void *argument) {
    long answered = 0;
    for (; answered < 40; answered++) {
        struct seccomp_notif question;
        memset(&question, 0, sizeof question);
        CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_RECV, &question) == 0);
        struct seccomp_notif_resp answer = {.id = question.id, .val = (long)question.data.args[0] + 100};
        if (question.data.args[0] == 7) answer.error = -ENFILE, answer.val = 0;
        CHECK(ioctl(listener, SECCOMP_IOCTL_NOTIF_SEND, &answer) == 0);
    }
    (void)argument;
    return (void *)answered;
}

FUNCTION static long asks(long n) { return syscall(SYS_getpgid, n); }

int main(void) {
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_getpgid, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_USER_NOTIF),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    listener = (int)syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_NEW_LISTENER, &program);
    if (listener < 0) SKIP("SECCOMP_RET_USER_NOTIF");
    pthread_t id;
    CHECK(pthread_create(&id, NULL, supervisor, NULL) == 0);
    long sum = 0, failed = 0;
    for (long i = 0; i < 40; i++) {
        long answer = asks(i);
        if (answer < 0) failed += errno == ENFILE;
        else sum += answer;
    }
    void *answered;
    pthread_join(id, &answered);
    printf("sum %ld, failed %ld, answered %ld\n", sum, failed, (long)answered);
    calls(".", "asks", 40);
    return 0;
}
