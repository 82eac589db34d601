// asks: does a handler with SA_ONSTACK run on the program's own alternate stack, however small that is, and
// what does it find of it? (HIT_13, sigaltstack(2)) short
#include "stranger.h"
#include <setjmp.h>
#include <sys/auxv.h>
#include <ucontext.h>

#ifndef SS_AUTODISARM
#define SS_AUTODISARM (1u << 31)
#endif

static char *low;
static size_t size;
static sigjmp_buf back;
static volatile int depth, wanted;
static volatile int *volatile nowhere = (int *)16;

FUNCTION static int work(int n) { return n * 3 + 1; }

// Where the caller runs, and what it is told of its stack.
static void show(const char *where, const ucontext_t *context) {
    char here;
    stack_t now, other = {.ss_sp = low, .ss_size = size};
    CHECK(sigaltstack(NULL, &now) == 0);
    int changed = sigaltstack(&other, NULL) == 0 ? 0 : errno;
    printf("%s: inside %d, now: same %d, size same %d, flags %x, change: %s", where, &here >= low && &here < low + size,
           now.ss_sp == low, now.ss_size == size, now.ss_flags, changed ? strerrorname_np(changed) : "done");
    if (context)
        printf(", told: same %d, size same %d, flags %x", context->uc_stack.ss_sp == low, context->uc_stack.ss_size == size,
               context->uc_stack.ss_flags);
    printf(", work %d\n", work(depth));
    fflush(stdout);
}

static void handler(int signal, siginfo_t *info, void *context) {
    (void)info;
    depth++;
    show(signal == SIGUSR1 ? "SIGUSR1" : signal == SIGUSR2 ? "SIGUSR2" : signal == SIGSEGV ? "SIGSEGV" : "another", context);
    if (depth == 1 && wanted) raise(wanted);
    depth--;
    if (signal == SIGSEGV) siglongjmp(back, 1);
}

static void *thread(void *argument) {
    (void)argument;
    low = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(mprotect(low, 16384, PROT_NONE) == 0);
    low += 16384;
    stack_t stack = {.ss_sp = low, .ss_size = size};
    work(0);
    CHECK(sigaltstack(&stack, NULL) == 0);
    work(0);
    show("set", NULL);
    // One that runs there, one inside of it, one that does not run there, inside of one that does.
    raise(SIGUSR1);
    show("behind", NULL);
    wanted = SIGUSR2;
    raise(SIGUSR1);
    wanted = SIGRTMIN;
    raise(SIGUSR1);
    wanted = 0;
    raise(SIGRTMIN);
    show("behind all", NULL);
    for (int i = 0; i < 3; i++)
        if (sigsetjmp(back, 1) == 0) {
            if (i == 1) raise(SIGSEGV);
            *nowhere = 1;
        }
    show("behind faults", NULL);
    raise(SIGUSR1);
    stack.ss_flags = SS_AUTODISARM;
    CHECK(sigaltstack(&stack, NULL) == 0);
    raise(SIGUSR1);
    show("behind disarm", NULL);
    raise(SIGRTMIN);
    return NULL;
}

int main(void) {
    setvbuf(stdout, NULL, _IONBF, 0);
    handle(SIGUSR1, handler, SA_ONSTACK);
    handle(SIGUSR2, handler, SA_ONSTACK);
    handle(SIGSEGV, handler, SA_ONSTACK);
    handle(SIGRTMIN, handler, 0);
    for (int i = 0; i < 2; i++) {
        size = i ? 12288 + getauxval(AT_MINSIGSTKSZ) * 3 : 40960;
        pthread_t id;
        CHECK(pthread_create(&id, NULL, thread, NULL) == 0);
        pthread_join(id, NULL);
    }
    show_signals();
    return 0;
}
