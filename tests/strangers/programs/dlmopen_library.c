// asks: do libraries of other namespaces, with libcs of their own, come, run and go as bare, eight at once
// and one after another? (CTL_5, dlmopen(3), dlinfo(3))
// library: -O2
#ifdef LIBRARY
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int known;
int shared(int n) { return known += n; }
int talks(int n) {
    char *text = malloc(64), out[64];
    snprintf(text, 64, "%d of %s", n, getenv("HOME") ? "home" : "nowhere");
    strcpy(out, text);
    free(text);
    errno = 0;
    close(-1);
    return (int)strlen(out) * 100 + errno;
}
#else
#include "stranger.h"
#include <dlfcn.h>

static void *open_one(int *sum) {
    void *one = dlmopen(LM_ID_NEWLM, "./dlmopen_library.so", RTLD_NOW | RTLD_LOCAL);
    if (!one) return NULL;
    int (*shared)(int) = dlsym(one, "shared"), (*talks)(int) = dlsym(one, "talks");
    CHECK(shared && talks);
    for (int i = 0; i < 10; i++) *sum += shared(i) + talks(i);
    return one;
}

int main(void) {
    void *all[8];
    int sum = 0, opened = 0;
    for (int i = 0; i < 8; i++) opened += (all[i] = open_one(&sum)) != NULL;
    if (opened == 0) SKIP("dlmopen");
    Lmid_t first = -1, second = -1;
    CHECK(dlinfo(all[0], RTLD_DI_LMID, &first) == 0 && dlinfo(all[1], RTLD_DI_LMID, &second) == 0);
    printf("%d opened, others %d, sum %d\n", opened, first != second && first != LM_ID_BASE, sum);
    for (int i = 0; i < 8; i++) CHECK(!all[i] || dlclose(all[i]) == 0);
    for (int i = 0; i < 12; i++) {
        void *one = open_one(&sum);
        CHECK(one && dlclose(one) == 0);
    }
    printf("sum %d, errno is its own %d\n", sum, errno);
    show_state();
    return 0;
}
#endif
