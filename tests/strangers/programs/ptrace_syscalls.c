// asks: does a debugger that watches its child's system calls (PTRACE_SYSCALL) see those that it sees bare,
// and the child's text as its file holds it? (ptrace(2), process_vm_readv(2))
#include "stranger.h"
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/user.h>

FUNCTION int target(int n) { return n * 3; }

static void child(void) {
    ptrace(PTRACE_TRACEME, 0, 0, 0);
    raise(SIGSTOP);
    int n = 0;
    for (int i = 0; i < 5; i++) n = target(n) + (getppid() == 0);
    char *memory = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    munmap(memory, 4096);
    on(SIGUSR1, SIG_IGN, 0);
    raise(SIGUSR1);
    int fd = open("/dev/null", O_RDONLY);
    close(fd);
    _exit(n + 6);
}

int main(void) {
    unsigned char seen[64];
    pid_t pid = fork();
    if (pid == 0) child();
    int status, entered = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status));
    CHECK(ptrace(PTRACE_SETOPTIONS, pid, 0, PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACEEXIT | PTRACE_O_EXITKILL) == 0);
    struct iovec to = {seen, 16}, from = {(void *)target, 16};
    CHECK(process_vm_readv(pid, &to, 1, &from, 1, 0) == 16);
    int breakpoints = 0;
    for (int i = 0; i < 16; i++) breakpoints += seen[i] == 0xcc;
    printf("breakpoints %d, jump %d\n", breakpoints, seen[0] == 0xe9);
    printf("calls:");
    for (;;) {
        CHECK(ptrace(PTRACE_SYSCALL, pid, 0, 0) == 0);
        CHECK(waitpid(pid, &status, 0) == pid);
        if (!WIFSTOPPED(status)) break;
        if (WSTOPSIG(status) != (SIGTRAP | 0x80)) {
            printf(" [%d, %d]", WSTOPSIG(status), status >> 16);
            continue;
        }
        struct user_regs_struct regs;
        CHECK(ptrace(PTRACE_GETREGS, pid, 0, &regs) == 0);
        if (entered++ % 2 == 0) printf(" %lld", regs.orig_rax);
    }
    printf("\nexited %d, status %d\n", WIFEXITED(status), WEXITSTATUS(status));
    return 0;
}
