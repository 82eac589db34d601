// asks: may another thread of the program handle the page faults of probed code? (userfaultfd(2))
#include "stranger.h"
#include <linux/userfaultfd.h>
#include <poll.h>
#include <sys/ioctl.h>

static int fd;
enum { PAGES = 32 };

static void *server(void *argument) {
    static char page[4096] __attribute__((aligned(4096)));
    for (int i = 0; i < PAGES; i++) {
        struct uffd_msg message;
        CHECK(read(fd, &message, sizeof message) == sizeof message);
        memset(page, 'a' + i, sizeof page);
        struct uffdio_copy copy = {.dst = message.arg.pagefault.address & ~4095ull, .src = (unsigned long)page, .len = 4096};
        CHECK(ioctl(fd, UFFDIO_COPY, &copy) == 0);
    }
    return argument;
}

FUNCTION static int fetch(const volatile char *at) { return *at; }

int main(void) {
    fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);
    if (fd < 0) SKIP("userfaultfd");
    struct uffdio_api api = {.api = UFFD_API};
    CHECK(ioctl(fd, UFFDIO_API, &api) == 0);
    char *memory = mmap(NULL, PAGES * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    struct uffdio_register range = {.range = {(unsigned long)memory, PAGES * 4096}, .mode = UFFDIO_REGISTER_MODE_MISSING};
    CHECK(ioctl(fd, UFFDIO_REGISTER, &range) == 0);
    pthread_t id;
    CHECK(pthread_create(&id, NULL, server, NULL) == 0);
    for (int i = 0; i < PAGES; i++) {
        // By the C library's own code, too.
        if (i % 2) printf("%c", fetch(memory + i * 4096));
        else printf("%.3s", memory + i * 4096);
    }
    printf("\n");
    pthread_join(id, NULL);
    calls(".", "fetch", PAGES / 2);
    return 0;
}
