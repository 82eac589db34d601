// asks: is what a program reads of its own text through memory and /proc/self/mem what its file holds?
// (HIT_13)
// documented *-program-* stdout: probe/README.md: Its own text has breakpoints and jumps where probes stand, in memory and in `/proc/self/mem`.
#include "stranger.h"

FUNCTION static int work(int n) { return n * 7 + 1; }

static unsigned sum_of(const unsigned char *bytes, long length) {
    unsigned sum = 0;
    while (length--) sum = sum * 31 + *bytes++;
    return sum;
}

int main(void) {
    extern char __executable_start[], etext[];
    extern char _start[];
    (void)_start;
    // From the first page of text to its end.
    long length = etext - (char *)work;
    int fd = open("/proc/self/exe", O_RDONLY), mem = open("/proc/self/mem", O_RDONLY);
    long offset = (char *)work - __executable_start;
    unsigned char file[256], memory[256];
    if (length > 256) length = 256;
    CHECK(pread(fd, file, (size_t)length, offset) == length && pread(mem, memory, (size_t)length, (off_t)(long)work) == length);
    printf("%d\n", work(1));
    printf("memory %s, /proc/self/mem %s\n", sum_of((unsigned char *)work, length) == sum_of(file, length) ? "is as the file" : "differs",
           memcmp(memory, file, (size_t)length) == 0 ? "is as the file" : "differs");
    return 0;
}
