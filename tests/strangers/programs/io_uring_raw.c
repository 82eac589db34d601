// asks: does a ring of io_uring, by bare system calls, with its own threads, complete what it completes bare?
// (io_uring(7))
#include "stranger.h"
#include <linux/io_uring.h>

int main(void) {
    struct io_uring_params parameters;
    memset(&parameters, 0, sizeof parameters);
    int ring = (int)syscall(SYS_io_uring_setup, 8, &parameters);
    if (ring < 0) SKIP("io_uring");
    size_t size = parameters.sq_off.array + parameters.sq_entries * sizeof(unsigned);
    size_t cq_size = parameters.cq_off.cqes + parameters.cq_entries * sizeof(struct io_uring_cqe);
    if (cq_size > size) size = cq_size;
    char *sq = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, ring, IORING_OFF_SQ_RING);
    char *cq = parameters.features & IORING_FEAT_SINGLE_MMAP ? sq : mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_CQ_RING);
    struct io_uring_sqe *entries = mmap(NULL, parameters.sq_entries * sizeof *entries, PROT_READ | PROT_WRITE, MAP_SHARED, ring, IORING_OFF_SQES);
    CHECK(sq != MAP_FAILED && cq != MAP_FAILED && entries != MAP_FAILED);
    int pipes[2], good = 0;
    CHECK(pipe(pipes) == 0);
    char in[8], out[8] = "strange";
    for (int i = 0; i < 100; i++) {
        unsigned tail = *(unsigned *)(sq + parameters.sq_off.tail), mask = *(unsigned *)(sq + parameters.sq_off.ring_mask);
        struct io_uring_sqe *entry = &entries[tail & mask];
        memset(entry, 0, sizeof *entry);
        entry->opcode = i % 2 ? IORING_OP_READ : IORING_OP_WRITE;
        entry->fd = pipes[i % 2 ? 0 : 1];
        entry->addr = (unsigned long)(i % 2 ? in : out);
        entry->len = 8;
        entry->flags = IOSQE_ASYNC;
        ((unsigned *)(sq + parameters.sq_off.array))[tail & mask] = tail & mask;
        __atomic_store_n((unsigned *)(sq + parameters.sq_off.tail), tail + 1, __ATOMIC_RELEASE);
        CHECK(syscall(SYS_io_uring_enter, ring, 1, 1, IORING_ENTER_GETEVENTS, NULL, 0) == 1);
        unsigned head = *(unsigned *)(cq + parameters.cq_off.head), cmask = *(unsigned *)(cq + parameters.cq_off.ring_mask);
        good += ((struct io_uring_cqe *)(cq + parameters.cq_off.cqes))[head & cmask].res == 8;
        __atomic_store_n((unsigned *)(cq + parameters.cq_off.head), head + 1, __ATOMIC_RELEASE);
    }
    printf("%d, %s\n", good, in);
    calls("libc.so.6", "syscall", 101);
    return 0;
}
