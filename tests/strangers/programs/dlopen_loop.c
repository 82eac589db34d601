// asks: does a library that comes and goes a hundred times, with a constructor, stay what it is? (CTL_5,
// dlopen(3))
// library:
#include "stranger.h"

#ifdef LIBRARY
static int state = 5;
__attribute__((constructor)) static void begin(void) { state = 7; }
__attribute__((visibility("default"))) int of_library(int n) { return n + state; }
#else
#include <dlfcn.h>
int main(void) {
    long sum = 0;
    for (int i = 0; i < 100; i++) {
        void *library = dlopen("./dlopen_loop.so", i % 2 ? RTLD_NOW : RTLD_LAZY);
        CHECK(library);
        int (*function)(int) = dlsym(library, "of_library");
        sum += function(i);
        CHECK(dlclose(library) == 0);
    }
    printf("%ld\n", sum);
    calls("libc.so.6", "dlopen", 100);
    calls("libc.so.6", "dlclose", 100);
    show_descriptors();
    return 0;
}
#endif
