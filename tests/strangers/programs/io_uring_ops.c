// asks: do timeouts, polls, links, cancellations, opened and closed files and registered buffers of io_uring,
// entered with a signal mask, by two threads and a forked child, complete as bare? (HIT_13,
// io_uring_enter(2), io_uring_register(2))
#include "stranger.h"
#include <linux/io_uring.h>
#include <linux/time_types.h>
#include <sys/eventfd.h>
#include <sys/uio.h>

static struct { int fd; char *sq, *cq; struct io_uring_sqe *entries; struct io_uring_params p; } ring;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static volatile int fired;
static void handler(int signal) { (void)signal; fired++; }

FUNCTION static void queue(int opcode, int fd, const void *address, unsigned length, unsigned long offset, unsigned flags, unsigned long data) {
    unsigned tail = *(unsigned *)(ring.sq + ring.p.sq_off.tail), mask = *(unsigned *)(ring.sq + ring.p.sq_off.ring_mask);
    struct io_uring_sqe *entry = &ring.entries[tail & mask];
    memset(entry, 0, sizeof *entry);
    entry->opcode = (uint8_t)opcode, entry->fd = fd, entry->addr = (unsigned long)address, entry->len = length;
    entry->off = offset, entry->flags = (uint8_t)flags, entry->user_data = data;
    if (opcode == IORING_OP_POLL_ADD) entry->poll32_events = 1;
    ((unsigned *)(ring.sq + ring.p.sq_off.array))[tail & mask] = tail & mask;
    __atomic_store_n((unsigned *)(ring.sq + ring.p.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
}

FUNCTION static void finish(const char *name, unsigned count) {
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    long entered = syscall(SYS_io_uring_enter, ring.fd, count, count, IORING_ENTER_GETEVENTS, &mask, 8);
    while (entered < 0 && errno == EINTR) entered = syscall(SYS_io_uring_enter, ring.fd, 0, count, IORING_ENTER_GETEVENTS, &mask, 8);
    int results[8] = {0};
    for (unsigned i = 0; i < count; i++) {
        unsigned head = *(unsigned *)(ring.cq + ring.p.cq_off.head), mask_ = *(unsigned *)(ring.cq + ring.p.cq_off.ring_mask);
        while (head == __atomic_load_n((unsigned *)(ring.cq + ring.p.cq_off.tail), __ATOMIC_ACQUIRE))
            syscall(SYS_io_uring_enter, ring.fd, 0, 1, IORING_ENTER_GETEVENTS, NULL, 0);
        struct io_uring_cqe *entry = &((struct io_uring_cqe *)(ring.cq + ring.p.cq_off.cqes))[head & mask_];
        results[entry->user_data & 7] = entry->res;
        __atomic_store_n((unsigned *)(ring.cq + ring.p.cq_off.head), head + 1, __ATOMIC_RELEASE);
    }
    if (!name) return;
    printf("%s:", name);
    for (unsigned i = 0; i < count; i++) printf(" %d", results[i]);
    printf("\n");
}

static int event;
static void *thread(void *argument) {
    for (int i = 0; i < 50; i++) {
        pthread_mutex_lock(&lock);
        queue(IORING_OP_NOP, -1, NULL, 0, 0, IOSQE_ASYNC, 0);
        finish(NULL, 1);
        pthread_mutex_unlock(&lock);
    }
    return argument;
}

int main(void) {
    ring.fd = (int)syscall(SYS_io_uring_setup, 8, &ring.p);
    if (ring.fd < 0) SKIP("io_uring");
    size_t size = ring.p.cq_off.cqes + ring.p.cq_entries * sizeof(struct io_uring_cqe) + 4096;
    ring.sq = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQ_RING);
    ring.cq = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_CQ_RING);
    ring.entries = mmap(NULL, ring.p.sq_entries * sizeof *ring.entries, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring.fd, IORING_OFF_SQES);
    CHECK(ring.sq != MAP_FAILED && ring.cq != MAP_FAILED && (void *)ring.entries != MAP_FAILED);
    on(SIGUSR2, handler, 0);
    struct __kernel_timespec soon = {0, 2000000};
    queue(IORING_OP_TIMEOUT, -1, &soon, 1, 0, 0, 0);
    finish("timeout", 1);
    event = eventfd(0, EFD_CLOEXEC);
    unsigned long one = 1, read_back = 0;
    queue(IORING_OP_POLL_ADD, event, NULL, 0, 0, 0, 0);
    queue(IORING_OP_WRITE, event, &one, 8, 0, 0, 1);
    finish("poll and write", 2);
    queue(IORING_OP_READ, event, &read_back, 8, 0, IOSQE_IO_LINK, 0);
    queue(IORING_OP_NOP, -1, NULL, 0, 0, IOSQE_IO_LINK, 1);
    queue(IORING_OP_READ, -1, &read_back, 8, 0, IOSQE_IO_LINK, 2);
    queue(IORING_OP_NOP, -1, NULL, 0, 0, 0, 3);
    finish("linked", 4);
    queue(IORING_OP_POLL_ADD, event, NULL, 0, 0, 0, 5);
    queue(IORING_OP_ASYNC_CANCEL, -1, (void *)5, 0, 0, 0, 1);
    finish(NULL, 2);
    char buffer[64];
    struct iovec vector = {buffer, sizeof buffer};
    printf("registered: %ld", syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_BUFFERS, &vector, 1));
    printf(", eventfd %ld\n", syscall(SYS_io_uring_register, ring.fd, IORING_REGISTER_EVENTFD, &event, 1));
    int zero = open("/dev/zero", O_RDONLY | O_CLOEXEC);
    queue(IORING_OP_READ_FIXED, zero, buffer, sizeof buffer, 0, IOSQE_IO_LINK, 0);
    queue(IORING_OP_CLOSE, zero, NULL, 0, 0, 0, 1);
    finish("fixed and closed", 2);
    printf("closed: %d\n", fcntl(zero, F_GETFD));
    syscall(SYS_io_uring_register, ring.fd, IORING_UNREGISTER_EVENTFD, NULL, 0);
    pthread_t ids[2];
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&ids[i], NULL, thread, NULL) == 0);
    for (int i = 0; i < 2; i++) pthread_join(ids[i], NULL);
    fflush(stdout);
    pid_t pid = fork();
    if (pid == 0) {
        queue(IORING_OP_NOP, -1, NULL, 0, 0, 0, 0);
        finish("child", 1);
        fflush(stdout);
        _exit(4);
    }
    show_child("child", pid);
    raise(SIGUSR2);
    printf("fired %d\n", fired);
    // The kernel's workers count as threads, while they wait for more.
    show_descriptors();
    show_signals();
    return 0;
}
