/* Does to the memory that it shares with the command what no agent does: hostile HOW.
   Says "done" when it has. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

__attribute__((noinline)) int work(int n) { __asm__ volatile("" : "+r"(n)); return n + 1; }

__attribute__((noinline)) void named(const void *at) { __asm__ volatile("" : : "r"(at) : "memory"); }

enum { PAGE = 4096, RING = 5 };
/* Words of a ring's first page. */
enum { OWNER = 0, BUSY = 3, HEAD = 8, TAIL = 16 };

static uint64_t *region, *ring, *data;
static size_t ring_len;

static void find(void) {
    char line[4352];
    FILE *maps = fopen("/proc/self/maps", "r");
    while (fgets(line, sizeof line, maps))
        if (strstr(line, "memfd:probe-trace")) {
            region = (uint64_t *)(uintptr_t)strtoull(line, NULL, 16);
            break;
        }
    fclose(maps);
    if (!region) exit(3);
    size_t *layout = (size_t *)(region + 1);
    size_t config = (PAGE + layout[0] + PAGE - 1) / PAGE * PAGE;
    ring_len = layout[3];
    ring = (uint64_t *)((char *)region + config + layout[1] + RING * (PAGE + ring_len));
    data = ring + PAGE / 8;
}

/* So that the command looks at that ring, too: how many have been taken stands behind the layout. */
static void show_ring(void) { *(uint32_t *)((size_t *)(region + 1) + 5) = RING + 1; }

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static char *put(char *at, const void *from, size_t len) { memcpy(at, from, len); return at + len; }
static char *put32(char *at, uint32_t word) { return put(at, &word, 4); }
static char *put64(char *at, uint64_t word) { return put(at, &word, 8); }

static uint64_t random_word(void) {
    static uint64_t noise = 88172645463325252u;
    noise ^= noise << 13, noise ^= noise >> 7, noise ^= noise << 17;
    return noise >> (noise >> 58);
}

/* Writes anything into these words, over and over. */
static void scribble(uint64_t *words, size_t count) {
    for (uint64_t until = now() + 500000000; now() < until;)
        for (int i = 0; i < 1000; i++) words[random_word() % count] = random_word() % 5 ? random_word() : 2;
}

/* Hands over a record that has been written at the ring's head. */
static void commit(char *end) {
    char *start = (char *)data + ring[HEAD] % ring_len;
    uint32_t len = end - start;
    put32(start, len);
    __atomic_store_n(&ring[HEAD], ring[HEAD] + (len + 7) / 8 * 8, __ATOMIC_RELEASE);
}

static char *begin(size_t most) {
    while (ring[HEAD] - __atomic_load_n(&ring[TAIL], __ATOMIC_ACQUIRE) + 2 * most > ring_len) usleep(100);
    if (ring[HEAD] % ring_len + most > ring_len) {
        put32((char *)data + ring[HEAD] % ring_len, UINT32_MAX);
        __atomic_store_n(&ring[HEAD], (ring[HEAD] / ring_len + 1) * ring_len, __ATOMIC_RELEASE);
    }
    return (char *)data + ring[HEAD] % ring_len + 4;
}

static void event(uint32_t point, uint64_t time, const char *text) {
    char *at = begin(4096);
    at = put32(at, 1);
    at = put64(put64(at, time), 0);
    at = put32(put32(put32(put32(at, 1), point), getpid()), getpid());
    commit(put(put32(at, strlen(text)), text, strlen(text)));
}

/* What an object at `start` is said to be. */
static void object(uint64_t start, const char *path) {
    char *at = begin(8192);
    at = put64(put64(put64(put32(put32(at, 3), 1), start), start + 4096), start);
    at = put(put32(at, strlen(path)), path, strlen(path));
    commit(put32(put64(put64(at, 0), 0), 0));
}

int main(int argc, char **argv) {
    const char *how = argc > 1 ? argv[1] : "";
    if (!strcmp(how, "fifo") || !strcmp(how, "other") || !strcmp(how, "same")) {
        /* What stands under this program's name when it is looked up there. */
        if (strcmp(how, "same")) unlink(argv[0]);
        if (!strcmp(how, "fifo") && mkfifo(argv[0], 0600)) return 6;
        if (!strcmp(how, "other") && symlink(argv[2], argv[0])) return 6;
        const void *at = (const void *)&work;
#if defined(_CALL_ELF) && _CALL_ELF == 1
        /* What it points to is a descriptor. */
        at = *(const void *const *)at;
#endif
        named(at);
        puts("done");
        return 7;
    }
    if (!strcmp(how, "library")) {
        /* Three gigabytes of nothing, mapped before all libraries under the name of one. */
        int file = open(argv[2], O_RDWR | O_CREAT | O_TRUNC, 0600);
        off_t len = (off_t)3 << 30;
        if (file < 0 || ftruncate(file, len)) return 6;
        void *at = mmap((void *)0x10000000, (size_t)len, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_FIXED_NOREPLACE, file, 0);
        if (at == MAP_FAILED) return 6;
        puts("mapped");
        fflush(stdout);
        getchar();
        return 7;
    }
    work(1);
    find();
    show_ring();
    ring[OWNER] = ((uint64_t)getpid() << 32) | getpid();
    if (!strcmp(how, "tail")) {
        /* The last bytes of the last ring end where the mapping does, or in the next ring's page. */
        for (int i = 0; i < 2000; i++) {
            ring[TAIL] = ring_len - 2 + i % 2;
            ring[HEAD] = 2 * ring_len - 2;
            usleep(100);
        }
    } else if (!strcmp(how, "noise")) {
        for (uint64_t until = now() + 500000000; now() < until;)
            for (int i = 0; i < 1000; i++) {
                ring[random_word() % 24] = random_word();
                data[random_word() % 512] = random_word();
            }
        ring[OWNER] = 0;
    } else if (!strcmp(how, "busy")) {
        /* Always in the middle of an event, and writing on: many times what may wait. */
        static char text[2049];
        memset(text, 'x', sizeof text - 1);
        ring[BUSY] = 1;
        for (int i = 0; i < 120000; i++) event(0, now(), text);
    } else if (!strcmp(how, "future")) {
        for (int i = 0; i < 1000; i++) event(0, UINT64_MAX, "later");
    } else if (!strcmp(how, "counts")) {
        char *stats = (char *)region + (PAGE + ((size_t *)(region + 1))[0] + PAGE - 1) / PAGE * PAGE;
        memset(stats, 0xff, 1 << 16);
    } else if (!strcmp(how, "maps")) {
        char *stats = (char *)region + (PAGE + ((size_t *)(region + 1))[0] + PAGE - 1) / PAGE * PAGE;
        scribble((uint64_t *)stats, (8 << 20) / 8);
    } else if (!strcmp(how, "header")) {
        /* All behind the lengths: who waits for whom, what has been taken, where the agent stands. */
        size_t *first = (size_t *)(region + 1) + 5;
        scribble((uint64_t *)first, ((char *)region + PAGE - (char *)first) / 8);
    } else if (!strcmp(how, "calls")) {
        /* Behind whether calls are answered: how many were made, and each with its process. A child goes on
           when this has ended, with processes that there are not: who is stopped writes nothing. */
        enum { ANSWERED = 14, MADE, CALLS, MOST = 16, IS_CALL = 2 };
        volatile uint32_t *words = (uint32_t *)((size_t *)(region + 1) + 5);
        if (words[ANSWERED] != 1) return 4;
        uint32_t pid = getpid();
        int is_child = !fork();
        if (is_child) {
            for (int fd = 0; fd < 3; fd++) close(fd);
        }
        for (uint64_t until = now() + (is_child ? 20000000000 : 500000000); now() < until;)
            for (int i = 0; i < MOST; i++) {
                words[CALLS + 2 * i + 1] = is_child ? INT32_MAX : pid + i / 2;
                words[CALLS + 2 * i] = IS_CALL;
                words[MADE]++;
            }
        if (is_child) _exit(0);
    } else if (!strcmp(how, "failed")) {
        char *at = begin(4096);
        at = put32(put32(put32(put32(put32(at, 6), 1), 0), 9), 4000000000u);
        commit(put(put32(at, 2), "no", 2));
    } else if (!strcmp(how, "object")) {
        for (int i = 2; i < argc; i++) object((uint64_t)i << 24, argv[i]);
        for (int i = 2; i < argc; i++) {
            uintptr_t address = ((uintptr_t)i << 24) + 16;
            char *at = begin(4096);
            at = put32(at, 1);
            at = put64(put64(at, now()), 0);
            at = put32(put32(put32(put32(at, 1), 0), getpid()), getpid());
            commit(put(put32(at, sizeof address), &address, sizeof address));
        }
    } else
        return 5;
    puts("done");
    return 7;
}
