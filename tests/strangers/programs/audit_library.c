// asks: does a program with an auditing library of the loader's (LD_AUDIT) start and run as bare?
// (rtld-audit(7))
// library:
// argv: first
#include "stranger.h"

#ifdef LIBRARY
#include <link.h>
__attribute__((visibility("default"))) unsigned la_version(unsigned version) { return version; }
__attribute__((visibility("default"))) unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie) {
    (void)map, (void)id, (void)cookie;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
#else
FUNCTION static int work(int n) { return n + 1; }

int main(int argc, char **argv) {
    (void)argc;
    if (strcmp(argv[1], "first") == 0) {
        setenv("LD_AUDIT", "./audit_library.so", 1);
        execl("/proc/self/exe", argv[0], "second", (char *)NULL);
        return 99;
    }
    int n = 0;
    for (int i = 0; i < 100; i++) n = work(n), getppid();
    printf("%d\n", n);
    calls(".", "work", 100);
    show_descriptors();
    return 0;
}
#endif
